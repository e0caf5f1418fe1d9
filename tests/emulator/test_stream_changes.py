"""The change stream itself changes while a pipeline reads it: altered, dropped, created again."""

import re
import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from google.api_core.exceptions import FailedPrecondition

from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.errors import InvalidQueryError, NotFoundError, ReaderError, StartTooOldError
from slackwater.scheduler.epoch_lead import LEAD_MAX_NS
from slackwater.scheduler.plan import Task
from slackwater.testing.compare import compare, cut_violations
from slackwater.testing.plain_client import TruthRecord
from slackwater.timestamp import NANOSECONDS_PER_SECOND, parse_rfc3339
from tests.support.changing import ChangingDatabase, Watching, changes
from tests.support.emulators import CHURN_SECONDS
from tests.support.truths import truth_of

WAIT_NS = 3 * NANOSECONDS_PER_SECOND


def truth(database: ChangingDatabase) -> list[TruthRecord]:
    """Return what the plain client reads of all that the pipeline has read."""
    plain_read = truth_of(
        database.stream, database.start_ns, database.loop.watermark_ns or 0, database.dialect
    )
    return sorted(plain_read.records)


def write_both(database: ChangingDatabase, name: str) -> None:
    """Write a row to each table, whose values say when they were written."""
    for table in ("T", "U"):
        database.insert(table, A=name, B=name)


def test_a_stream_altered_to_other_tables_gives_what_it_watched_at_each_commit(
    watching: Watching,
) -> None:
    database = watching("`T`")
    write_both(database, "one")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR ALL")
    write_both(database, "two")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `U`")
    write_both(database, "three")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR ALL")
    write_both(database, "four")
    assert [(change.new["A"], change.table) for change in database.read()] == [
        ("one", "T"),
        ("two", "T"),
        ("two", "U"),
        ("three", "U"),
        ("four", "T"),
        ("four", "U"),
    ]


def test_the_emulator_watches_the_last_table_only_of_those_that_a_stream_is_altered_to(
    watching: Watching,
) -> None:
    """A defect of the emulator's, which the plain client shows too; CREATE watches both tables."""
    database = watching("`T`, `U`")
    write_both(database, "created")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `U`, `T`")
    write_both(database, "altered")
    values_and_tables = [(change.new["A"], change.table) for change in database.read()]
    assert values_and_tables == [("created", "T"), ("created", "U"), ("altered", "T")]
    assert [record.table_name for record in truth(database)] == [
        table for _, table in values_and_tables
    ]


def test_a_stream_altered_to_other_columns_gives_what_it_watched_at_each_commit(
    watching: Watching,
) -> None:
    database = watching("`T`")
    row = database.insert(A="a", B="b")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `T`(`B`)")
    database.update(row, A="unseen")
    database.update(row, A="a2", B="b2")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `T`()")
    database.update(row, B="unseen")
    database.insert(A="unseen")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `T`(`A`, `B`)")
    database.update(row, A="a3", B="b3")
    assert [(change.mod_type, change.new) for change in database.read()] == [
        ("INSERT", {"A": "a", "B": "b"}),
        ("UPDATE", {"B": "b2"}),
        ("INSERT", {}),
        ("UPDATE", {"A": "a3", "B": "b3"}),
    ]


def test_a_suspended_stream_gives_nothing_and_goes_on_when_it_is_resumed(
    watching: Watching,
) -> None:
    database = watching("ALL")
    write_both(database, "before")
    database.ddl("ALTER CHANGE STREAM `S` DROP FOR ALL")
    write_both(database, "suspended")
    assert {change.new["A"] for change in database.read()} == {"before"}
    write_both(database, "suspended")
    assert database.read() == []
    database.ddl("ALTER CHANGE STREAM `S` SET FOR ALL")
    write_both(database, "after")
    assert [change.new["A"] for change in database.read()] == ["after", "after"]


def test_a_value_capture_type_holds_for_the_records_committed_under_it(
    watching: Watching,
) -> None:
    database = watching("ALL")
    row = database.insert(A="a", B="b")
    database.update(row, A="a2")
    for capture in ("NEW_ROW", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES"):
        database.ddl(f"ALTER CHANGE STREAM `S` SET OPTIONS (value_capture_type = '{capture}')")
        database.update(row, A=capture[:10])
    _, *updates = database.read()
    assert [(change.capture, change.new, change.old) for change in updates] == [
        ("OLD_AND_NEW_VALUES", {"A": "a2"}, {"A": "a"}),
        ("NEW_ROW", {"A": "NEW_ROW", "B": "b"}, {}),
        ("NEW_VALUES", {"A": "NEW_VALUES"}, {}),
        ("NEW_ROW_AND_OLD_VALUES", {"A": "NEW_ROW_AN", "B": "b"}, {"A": "NEW_VALUES"}),
    ]


def test_a_retention_period_altered_is_described_and_reading_goes_on(watching: Watching) -> None:
    """No records here are old enough to fall out of a shorter retention: 24h is the least."""
    database = watching("ALL")
    assert read_change_stream_info(database.clock).retention_ns is None
    database.insert(A="before")
    database.ddl("ALTER CHANGE STREAM `S` SET OPTIONS (retention_period = '36h')")
    database.insert(A="after")
    assert (
        read_change_stream_info(database.clock).retention_ns == 36 * 3_600 * NANOSECONDS_PER_SECOND
    )
    assert [change.new["A"] for change in database.read()] == ["before", "after"]
    with pytest.raises(FailedPrecondition, match=r"range \[24h, 7d\]"):
        database.ddl("ALTER CHANGE STREAM `S` SET OPTIONS (retention_period = '1h')")


def test_changes_of_schema_and_stream_under_churn_lose_and_repeat_nothing(
    watching: Watching,
) -> None:
    """Epochs begin and end between any of the changes, and partitions split all the time."""
    database = watching("ALL")
    epochs = []
    for i in range(12):
        write_both(database, f"{i}")
        if i % 3 == 0:
            database.ddl(f"ALTER TABLE `T` ADD COLUMN `C{i}` STRING(10)")
            database.insert("T", **{f"C{i}": "c"})
        elif i % 3 == 1:
            capture = ("NEW_ROW", "NEW_VALUES")[i % 2]
            database.ddl(f"ALTER CHANGE STREAM `S` SET OPTIONS (value_capture_type = '{capture}')")
        else:
            database.ddl("ALTER CHANGE STREAM `S` DROP FOR ALL")
            write_both(database, "unseen")
            database.ddl("ALTER CHANGE STREAM `S` SET FOR ALL")
        time.sleep(3 * CHURN_SECONDS / 12)
        if i % 2:
            epochs.append(database.loop.epoch())
    output = pa.concat_tables(epochs)
    assert compare(output, truth(database)).is_equal
    assert cut_violations(output) == []
    assert output.num_rows == 12 * 2 + 4
    assert len(set(output["partition_token"].to_pylist())) > 1


def plan(database: ChangingDatabase, *, wait_ns: int = 0) -> Sequence[Task]:
    """The next epoch's tasks; with wait_ns their queries stay open that long."""
    loop = database.loop
    assert loop.watermark_ns is not None
    end_ns = loop.planner.next_watermark_ns(loop.watermark_ns)
    return loop.planner.plan(loop.watermark_ns, end_ns + wait_ns)


def drop(database: ChangingDatabase, *, and_make_anew: bool) -> None:
    # In one request, as an open query would otherwise find no stream at all for a moment.
    database.ddl("DROP CHANGE STREAM `S`", *([database.make_stream] if and_make_anew else []))


def while_reading(database: ChangingDatabase, change: Callable[[], None]) -> ReaderError:
    """The error of an epoch whose queries are open when the change happens."""
    tasks = plan(database, wait_ns=WAIT_NS)
    # The queries are opened when the task has waited in vain for the epoch's end to pass.
    changer = threading.Timer(2 * LEAD_MAX_NS / NANOSECONDS_PER_SECOND, change)
    changer.start()
    with pytest.raises(ReaderError) as caught:
        database.loop.read(tasks)
    changer.join()
    return caught.value


def committed_ns(database: ChangingDatabase) -> int | None:
    pipeline = database.loop.store.pipeline("orders")
    assert pipeline is not None
    return pipeline.low_watermark_ns


def assert_is_dropped(error: ReaderError, database: ChangingDatabase) -> None:
    assert type(error) is NotFoundError
    assert error.user_error
    assert "does not exist, or no longer" in error.message
    assert database.stream.path in error.message
    assert "If it was dropped, its records are gone" in error.hint


def assert_is_made_anew(error: ReaderError) -> None:
    assert type(error) is StartTooOldError
    assert error.user_error
    assert "created again begins at its last creation" in error.message
    assert "are gone" in error.hint
    assert "another name and a new checkpoint" in error.hint


def test_a_stream_dropped_between_epochs_stops_the_pipeline(watching: Watching) -> None:
    database = watching("ALL")
    database.insert(A="read")
    assert len(database.read()) == 1
    stands_ns = committed_ns(database)
    database.insert(A="lost")
    drop(database, and_make_anew=False)
    for _ in range(2):
        with pytest.raises(NotFoundError) as caught:
            database.read()
        assert_is_dropped(caught.value, database)
    assert committed_ns(database) == stands_ns
    with pytest.raises(NotFoundError, match="has no change stream 'S'"):
        read_change_stream_info(database.clock)


def test_a_stream_dropped_after_the_epoch_was_planned_stops_the_pipeline(
    watching: Watching,
) -> None:
    database = watching("ALL")
    database.insert(A="lost")
    tasks = plan(database)
    drop(database, and_make_anew=False)
    with pytest.raises(NotFoundError) as caught:
        database.loop.read(tasks)
    assert_is_dropped(caught.value, database)


def test_a_stream_dropped_while_a_query_is_open_stops_the_pipeline(watching: Watching) -> None:
    database = watching("ALL")
    error = while_reading(database, lambda: drop(database, and_make_anew=False))
    assert_is_dropped(error, database)


@pytest.mark.parametrize("is_planned", [False, True], ids=["between epochs", "planned"])
def test_a_recreated_stream_stops_the_pipeline_and_is_read_from_its_creation_as_another_one(
    is_planned: bool, watching: Watching
) -> None:
    database = watching("ALL")
    database.insert(A="read")
    assert len(database.read()) == 1
    stands_ns = committed_ns(database)
    database.insert(A="lost")
    tasks = plan(database) if is_planned else None
    drop(database, and_make_anew=True)
    database.insert(A="new")
    with pytest.raises(StartTooOldError) as caught:
        database.loop.read(tasks) if tasks else database.read()
    assert_is_made_anew(caught.value)
    assert committed_ns(database) == stands_ns
    # It does not cure itself, and what the hint says does.
    with pytest.raises(StartTooOldError):
        database.read()
    named = re.search(r"starts at (\S+) or later", caught.value.hint)
    assert named is not None
    for start in (named.group(1), "earliest"):
        other = database.pipeline(parse_rfc3339(named.group(1)), start=start)
        records = changes(other.epoch(end_ns=other.planner.next_watermark_ns(None)))
        assert [change.new["A"] for change in records] == ["new"]


def test_a_recreated_stream_is_not_taken_for_the_old_one_if_the_metadata_store_is_lost(
    watching: Watching,
) -> None:
    """The partitions are looked for at the checkpoint's low watermark, which it refuses."""
    database = watching("ALL")
    drop(database, and_make_anew=True)
    database.insert(A="new")
    other = database.pipeline(0)
    other.watermark_ns = database.loop.watermark_ns
    with pytest.raises(StartTooOldError) as caught:
        other.epoch()
    assert_is_made_anew(caught.value)


def test_a_stream_recreated_while_a_query_is_open_stops_the_pipeline(watching: Watching) -> None:
    """The emulator asks for the stream by its name again and refuses the old one's token."""
    database = watching("ALL")
    error = while_reading(database, lambda: drop(database, and_make_anew=True))
    if type(error) is InvalidQueryError:
        assert error.user_error
        assert "partition_token" in error.message
        assert "dropped and created again" in error.hint
        assert "another name and a new checkpoint" in error.hint
    else:
        # The query's time was looked at before its token: both were the old stream's.
        assert type(error) is StartTooOldError
        assert_is_made_anew(error)
    with pytest.raises(StartTooOldError) as caught:
        database.read()
    assert_is_made_anew(caught.value)
