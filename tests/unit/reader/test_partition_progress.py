from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.partition_progress import PartitionProgress, record_time_ns
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)


def data(time_ns: int, transaction: str = "t", sequence: str = "0") -> DataChangeRecord:
    return DataChangeRecord(
        time_ns, transaction, sequence, True, "T", (), (), "INSERT", "NEW_ROW", 1, 1, "", False
    )


def test_a_data_change_record_proves_only_what_lies_before_it() -> None:
    progress = PartitionProgress(0)
    progress.advance([data(10)])
    assert progress.watermark_ns == 9


def test_a_broken_query_goes_on_at_the_last_commit_timestamp() -> None:
    progress = PartitionProgress(0)
    progress.advance([data(10, "t", "0"), data(10, "t", "1")])
    assert progress.reopen_ns == 10
    again = [data(10, "t", "0"), data(10, "t", "1"), data(10, "u", "0"), data(11)]
    assert progress.drop_duplicates(again) == [data(10, "u", "0"), data(11)]


def test_a_late_heartbeat_does_not_turn_progress_back() -> None:
    progress = PartitionProgress(0)
    progress.advance([data(10), HeartbeatRecord(9)])
    assert progress.reopen_ns == 10


def of_kind(kind: str, time_ns: int, sequence: str) -> ChangeRecord:
    match kind:
        case "start":
            return PartitionStartRecord(time_ns, sequence, ("other",))
        case "event":
            return PartitionEventRecord(time_ns, sequence, "here", ("other",), ())
        case "heartbeat":
            return HeartbeatRecord(time_ns)
        case _:
            return data(time_ns, kind, sequence)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from("012"),
            st.sampled_from(["start", "event", "heartbeat", "t", "u"]),
        ),
        unique=True,
        max_size=20,
    ),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_however_often_a_query_breaks_each_record_comes_once(
    shape: list[tuple[int, str, str]], breaks: list[int]
) -> None:
    """The same record_sequence in two kinds, as the emulator numbers them, is two records."""
    stream = [of_kind(kind, time_ns, sequence) for time_ns, sequence, kind in sorted(shape)]
    # Child partitions records come whatever the start is.
    stream += [ChildPartitionsRecord(4, "0", ()), PartitionEndRecord(4, "3", "here")]
    progress = PartitionProgress(0)
    seen: list[ChangeRecord] = []
    for cut in [*breaks, len(stream)]:
        served = [
            record
            for record in stream
            if isinstance(record, ChildPartitionsRecord)
            or record_time_ns(record) >= progress.reopen_ns
        ]
        for record in served[:cut] if cut < len(stream) else served:
            fresh = progress.drop_duplicates([record])
            progress.advance(fresh)
            seen.extend(fresh)
    assert once(seen) == once(stream)


def once(records: Sequence[ChangeRecord]) -> list[ChangeRecord]:
    """Return the records that a consumer must see once."""
    repeatable = (HeartbeatRecord, ChildPartitionsRecord)
    return [record for record in records if not isinstance(record, repeatable)]


@pytest.mark.parametrize("kind", ["start", "event", "t"])
def test_a_record_that_comes_once_and_out_of_order_is_refused(kind: str) -> None:
    progress = PartitionProgress(0)
    with pytest.raises(ValueError, match="came after"):
        progress.advance([data(10), of_kind(kind, 9, "0")])


def test_the_next_query_starts_after_what_the_last_one_has_returned() -> None:
    progress = PartitionProgress(0)
    progress.advance([data(10)])
    progress.advance_past(10)
    assert progress.reopen_ns == 11
    progress.advance_past(7)
    assert progress.watermark_ns == 10
