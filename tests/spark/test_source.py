"""The Spark source by itself, as a notebook uses it; runs on Spark 4.1 and on 4.2."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from slackwater.demo.load import Load
from slackwater.endpoint import plaintext
from slackwater.pipeline.failures import diagnose
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import NotFoundError
from slackwater.reader.schema import SCHEMA
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from slackwater.worker_errors import ErrorRecord, encoded_errors
from tests.spark.sessions import HAS_AVAILABLE_NOW, Collected, on_newer_spark, wait_until
from tests.support.emulators import NewDatabase
from tests.support.truths import truth_of
from tests.support.typed_changelogs import Change, change_in, expected_changes

# `make test` reads one dialect on each version of Spark: see on-spark-42 in the Makefile.
ON_EITHER_SPARK = [
    Dialect.POSTGRESQL,
    pytest.param(
        Dialect.GOOGLE_STANDARD_SQL, marks=[] if HAS_AVAILABLE_NOW else [pytest.mark.long]
    ),
]


def changes(spark: SparkSession, stream: ChangeStream) -> DataStreamReader:
    return spark.readStream.format("spanner_changes").options(**address(stream))


def address(stream: ChangeStream) -> dict[str, str]:
    return {
        "project": stream.project,
        "instance": stream.instance,
        "database": stream.database,
        "change_stream": stream.change_stream,
        # The JVM outlives a session, and keeps the environment of the first one's emulator.
        "endpoint": stream.endpoint.target,
        "plaintext": "true",
    }


def run_until(source: DataFrame, sink: Any, folder: Path, done: Any) -> None:
    query = (
        source.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    try:
        wait_until(done, query)
    finally:
        query.stop()


def key(row: Any) -> tuple[str, str, str]:
    return (f"{row[0]:%Y-%m-%dT%H:%M:%S.%f}Z", row[1], row[2])


def test_the_columns_are_those_of_the_contract(notebook: SparkSession, tmp_path: Path) -> None:
    stream = ChangeStream("test-project", "test-instance", "db", "S", endpoint=plaintext("x:1"))
    source = changes(notebook, stream).load()
    assert source.columns == SCHEMA.names
    assert source.schema["commit_timestamp"].dataType.simpleString() == "timestamp"
    assert source.schema["mods"].dataType.simpleString() == (
        "array<struct<keys:string,new_values:string,old_values:string>>"
    )


@pytest.mark.parametrize("dialect", ON_EITHER_SPARK, ids=str)
def test_a_notebook_without_a_metadata_store_reads_every_record_over_a_restart(
    dialect: Dialect, notebook: SparkSession, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    start = format_rfc3339(start_ns)
    load = Load(stream, dialect, seed=3)
    sink = Collected()
    written = 0
    for _ in range(2):
        written += load.run(transactions_per_second=40, seconds=1).transactions
        source = changes(notebook, stream).option("start", start).load()
        run_until(
            source,
            sink,
            tmp_path,
            lambda count=written: len({(row[0], row[1]) for row in sink.rows()}) >= count,
        )
    truth = truth_of(stream, start_ns, connection.strong_read_timestamp_ns(), dialect)
    # A stop may cut a batch that was already collected; Spark's own sinks drop such a one.
    assert {key(row) for row in sink.rows()} == {record[:3] for record in truth.records}
    assert len(truth.records) > written


@on_newer_spark
def test_a_query_with_an_end_stops_offering_epochs_there(
    notebook: SparkSession, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=4)
    load.transaction()
    end_ns = connection.strong_read_timestamp_ns()
    load.transaction()
    source = (
        changes(notebook, stream)
        .option("start", format_rfc3339(start_ns))
        .option("end", format_rfc3339(end_ns))
        .load()
    )
    sink = Collected()
    query = (
        source.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_until(lambda: bool(sink.rows()), query)
    query.processAllAvailable()
    progress = query.lastProgress
    query.stop()
    assert progress is not None
    offset = json.loads(progress.json)["sources"][0]["endOffset"]
    assert end_ns <= parse_rfc3339(offset["low_watermark"]) < end_ns + 1_000
    assert len({row[1] for row in sink.rows()}) == 1


def test_a_batch_read_holds_each_record_between_two_times_once(
    notebook: SparkSession, new_database: NewDatabase
) -> None:
    stream = new_database()
    connection = Connection(stream)
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=6)
    load.transaction()
    start_ns = connection.strong_read_timestamp_ns()
    load.run(transactions_per_second=40, seconds=2)
    end_ns = connection.strong_read_timestamp_ns()
    load.transaction()
    reader = notebook.read.format("spanner_changes").options(**address(stream))
    reader = reader.options(tasks="2", heartbeat="1s")
    bounds = {"start": format_rfc3339(start_ns), "end": format_rfc3339(end_ns)}
    truth = truth_of(stream, start_ns, end_ns, Dialect.GOOGLE_STANDARD_SQL)
    expected = sorted(record[:3] for record in truth.records)
    rows = reader.load(**bounds).collect()
    assert sorted(map(key, rows)) == expected
    assert len({row["low_watermark"] for row in rows}) == 2, "it was not read in slices"
    assert len(expected) > 50
    # The session is the notebook's own.
    own = {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "America/St_Johns",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
    }
    former = {name: str(notebook.conf.get(name)) for name in own}
    try:
        for name, value in own.items():
            notebook.conf.set(name, value)
        again = reader.load(**bounds)
        assert again.schema["commit_timestamp"].dataType.simpleString() == "timestamp"
        assert sorted(map(key, again.collect())) == expected
    finally:
        for name, value in former.items():
            notebook.conf.set(name, value)


@pytest.mark.parametrize("dialect", ON_EITHER_SPARK, ids=str)
def test_a_tables_changes_come_in_typed_columns(
    dialect: Dialect, notebook: SparkSession, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    Load(stream, dialect, seed=7).run(transactions_per_second=40, seconds=2)
    end_ns = connection.strong_read_timestamp_ns()
    bounds = {"start": format_rfc3339(start_ns), "end": format_rfc3339(end_ns)}
    records = truth_of(stream, start_ns, end_ns, dialect).records
    tables = {record.table_name for record in records}
    assert len(tables) > 1
    for table in tables:
        expected = expected_changes(record for record in records if record.table_name == table)
        options = {**address(stream), **bounds, "heartbeat": "1s", "table": table}
        batch = notebook.read.format("spanner_changes").options(**options).load()
        assert typed(table, batch.collect()) == expected
    source = notebook.readStream.format("spanner_changes").options(**options).load()
    assert source.schema == batch.schema
    rows: list[Any] = []

    def collect(epoch: DataFrame, _: int) -> None:
        rows.extend(epoch.collect())

    run_until(source, collect, tmp_path, lambda: len(rows) >= expected.total())
    assert typed(table, rows) == expected


def typed(table: str, rows: Iterable[Any]) -> Counter[Change]:
    return Counter(change_in(table, row.asDict(recursive=True)) for row in rows)


@on_newer_spark
def test_a_table_that_the_stream_does_not_watch_is_named_with_a_similar_one(
    notebook: SparkSession, new_database: NewDatabase
) -> None:
    source = changes(notebook, new_database())
    with pytest.raises(Exception, match=r"watches no table 'Order'.* Did you mean 'Orders'\?"):
        source.option("table", "Order").load()


def test_available_now_reads_up_to_the_clock_and_ends(
    notebook: SparkSession, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    start = format_rfc3339(Connection(stream).strong_read_timestamp_ns())
    state_url = f"sqlite:///{tmp_path / 'state.db'}"
    options = {"start": start, "state_url": state_url}
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=5)
    sink = Collected()
    transactions = 0
    # The second time from a checkpoint, which Spark 4.1 does not show to the source.
    for max_span in ("1000ms", "1h" if HAS_AVAILABLE_NOW else "1000ms"):
        transactions += load.run(transactions_per_second=30, seconds=2).transactions
        query = (
            changes(notebook, stream)
            .options(**options, max_span=max_span)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert len({row[1] for row in sink.rows()}) == transactions
    assert len(sink.rows()) == len({key(row) for row in sink.rows()})
    if HAS_AVAILABLE_NOW:
        assert len(sink.epochs) >= 3, "max_span did not bound the epochs"
    else:
        assert len(sink.epochs) == 2


def test_an_unknown_option_is_named_with_a_similar_one(notebook: SparkSession) -> None:
    stream = ChangeStream("test-project", "test-instance", "db", "S", endpoint=plaintext("x:1"))
    with pytest.raises(Exception, match=r"no option 'chnage_stream'.*'change_stream'"):
        changes(notebook, stream).option("chnage_stream", "S").load()


@on_newer_spark
def test_a_checkpoint_of_another_change_stream_is_refused(
    notebook: SparkSession, new_database: NewDatabase, tmp_path: Path
) -> None:
    sink = Collected()
    run_until(
        changes(notebook, new_database()).load(), sink, tmp_path, lambda: len(sink.epochs) >= 2
    )
    other = changes(notebook, new_database()).load()
    with pytest.raises(
        (StreamingQueryException, AssertionError), match="belongs to change_stream"
    ) as caught:
        run_until(other, sink, tmp_path, lambda: False)
    # What the planner raised reaches the driver whole.
    failure = diagnose(str(caught.value))
    assert (failure.error_class, failure.user_error) == ("ForeignCheckpointError", True)
    assert failure.message.startswith("the checkpoint belongs to change_stream")
    assert failure.hint == "Give each pipeline its own checkpoint"


UGLY = 'one "line"\nand another, \u2603 ${x} <y>: {"slackwater_error": {}}\n\tat z'


def raising_source() -> type[DataSource]:
    """Return a source whose task fails as one of ours would.

    Of a function, so that Spark's workers get its code and do not import this module.
    """

    class RaisingReader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            del partition
            with encoded_errors():
                raise NotFoundError(UGLY, "Correct it")
            yield (1,)

    class RaisingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "raising"

        def schema(self) -> str:
            return "x int"

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return RaisingReader()

    return RaisingSource


def in_a_task(batch: DataFrame, epoch: int) -> None:
    del epoch
    batch.sparkSession.read.format("raising").load().collect()


def in_a_sink(batch: DataFrame, epoch: int) -> None:
    del batch, epoch
    with encoded_errors():
        raise NotFoundError(UGLY, "Correct it")


@pytest.mark.parametrize("sink", [in_a_task, in_a_sink])
def test_an_error_of_several_lines_reaches_the_driver_whole(
    sink: Callable[[DataFrame, int], None],
    notebook: SparkSession,
    new_database: NewDatabase,
    tmp_path: Path,
) -> None:
    notebook.dataSource.register(raising_source())
    query = (
        changes(notebook, new_database())
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(240)
    text = str(caught.value)
    if "Python worker failed to connect back" in text:
        # Spark's own limit of ten seconds; with this error the test runs again.
        raise caught.value
    assert f"NotFoundError: {UGLY} Correct it\n" in text, "people can't read it"
    for failure in (diagnose(text), diagnose(query.exception() or "")):
        assert failure == ErrorRecord("NotFoundError", UGLY, "Correct it", True)
