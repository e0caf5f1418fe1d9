import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.partition_progress import PartitionProgress
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
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


def test_a_data_change_record_out_of_order_is_refused() -> None:
    progress = PartitionProgress(0)
    with pytest.raises(ValueError, match="came after"):
        progress.advance([data(10), data(9)])


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=20),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_however_often_a_query_breaks_each_record_comes_once(
    shape: list[tuple[int, bool]], breaks: list[int]
) -> None:
    """A partition's records, served from any start and cut anywhere."""
    stream: list[ChangeRecord] = []
    for i, (time_ns, is_data) in enumerate(sorted(shape)):
        stream.append(data(time_ns, str(i)) if is_data else HeartbeatRecord(time_ns))
    stream.append(ChildPartitionsRecord(7, "0", ()))
    progress = PartitionProgress(0)
    seen: list[ChangeRecord] = []
    for cut in [*breaks, len(stream)]:
        served = [
            r for r in stream if not isinstance(r, DataChangeRecord) or r[0] >= progress.reopen_ns
        ]
        for record in served[:cut] if cut < len(stream) else served:
            fresh = progress.drop_duplicates([record])
            progress.advance(fresh)
            seen.extend(fresh)
    expected = [r for r in stream if isinstance(r, DataChangeRecord)]
    assert [r for r in seen if isinstance(r, DataChangeRecord)] == expected
