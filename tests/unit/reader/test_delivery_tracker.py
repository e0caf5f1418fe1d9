"""What a query may not return, and what is handed on once."""

import pytest

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.errors import DecodeError
from slackwater.reader.query.delivery_tracker import DeliveryTracker
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)

END = PartitionEndRecord(5_000, "9", "here")


def data(time_ns: int, sequence: str) -> DataChangeRecord:
    return DataChangeRecord(
        time_ns, "t", sequence, True, "T", (), (), "INSERT", "NEW_ROW", 1, 1, "", False
    )


def rows(*records: DataChangeRecord) -> Rows:
    return Rows.of(data_columns(records))


@pytest.mark.parametrize(
    "record",
    [PartitionEndRecord(5_000, "9", "other"), PartitionEventRecord(5_000, "9", "other", (), ())],
)
def test_a_record_of_another_partition_is_refused(record: ChangeRecord) -> None:
    tracker = DeliveryTracker("here", 0)
    with pytest.raises(DecodeError, match="partition here: a record of partition other"):
        tracker.new_records([record])


def test_the_end_record_is_the_partitions_last() -> None:
    tracker = DeliveryTracker("here", 0)
    tracker.new_records([END, HeartbeatRecord(6_000)])
    assert tracker.ending_records == [END]
    for record in (data(7_000, "1"), PartitionStartRecord(7_000, "1", ("other",))):
        with pytest.raises(DecodeError, match="after the partition's end"):
            tracker.new_records([record])
    with pytest.raises(DecodeError, match="after the partition's end"):
        tracker.new_rows(rows(data(7_000, "2")))


@pytest.mark.timeout(60)
def test_the_first_partitions_of_a_large_database_take_time_as_their_number() -> None:
    tracker = DeliveryTracker(None, 0)
    first = [ChildPartitionsRecord(0, "0", ()) for _ in range(200_000)]
    tracker.new_records(first)
    assert tracker.ending_records == first


def test_a_reopened_query_hands_on_what_is_new_by_record_and_by_column() -> None:
    tracker = DeliveryTracker("here", 0)
    start = PartitionStartRecord(5_000, "1", ("other",))
    tracker.new_records([data(5_000, "0"), start])
    tracker.was_reopened = True
    new, flags = tracker.new_rows(rows(data(5_000, "0"), data(5_000, "2")))
    assert flags is not None
    assert flags.tolist() == [False, True]
    assert new.batch.column("record_sequence").to_pylist() == ["2"]
    assert tracker.new_records([start, data(5_000, "2"), END]) == [END]
    assert tracker.new_records([END]) == []
