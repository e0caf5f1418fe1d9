"""A changelog in BigQuery: what its table has to be, what a restart finds, and what it costs."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.api_core.exceptions import Forbidden, NotFound
from google.auth.exceptions import RefreshError
from google.cloud.bigquery import SchemaField, Table
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

from slackwater.spark_sink.errors import BigQueryError, ObjectStoreError, PublishError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.bigquery import appends, row_stream
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.changes_table import ChangesTable
from slackwater.spark_sink.output.bigquery.clients import requests_to
from slackwater.spark_sink.output.bigquery.dataset import Dataset, require_usable
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.epoch_place import Form
from slackwater.spark_sink.output.file_log import CHUNKS, EPOCHS, FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.small_files import LocalFiles
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.object_stores import nothing

START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)
US: Final = pa.timestamp("us", "UTC")


def refuse_flushes(method: str, name: str) -> None:
    """Let no flush arrive; for Door.before."""
    if method == "FlushRows":
        raise RuntimeError("the network is gone")


@dataclass
class Pipeline:
    """What one pipeline writes to a table of its own; each new process is another log."""

    server: BigQueryServer
    door: Door
    folder: Path
    table: str = field(default_factory=lambda: f"changes_{uuid.uuid4().hex}")

    @property
    def address(self) -> TableAddress:
        return TableAddress(PROJECT, DATASET, self.table)

    def shown(self) -> ChangesTable:
        place = Disk(self.folder, str(self.folder))
        dataset = Dataset(self.address, self.server.options(self.door))
        return ChangesTable(dataset, self.table, place)

    def new_process(self, logged: datetime | None = None) -> FileLog:
        log = FileLog(Disk(self.folder, str(self.folder)), Form(PARQUET, PARQUET), self.shown())
        log.take_over(lambda: logged)
        return log

    def publish(
        self, log: FileLog, number: int, *, chunk: int | None = None, rows: int = 1
    ) -> bool:
        """Publish an epoch of equal rows; those of a chunk belong to no transaction."""
        kind = EPOCHS if chunk is None else CHUNKS
        at = START + timedelta(seconds=number)
        table = pa.table(
            {
                "commit_timestamp": pa.array([at] * rows, US),
                "low_watermark": pa.array([at] * rows, US),
                "server_transaction_id": ["" if chunk is not None else str(number)] * rows,
                "table_name": ["Orders"] * rows,
                "number": [number] * rows,
            }
        )
        name = f"part-{uuid.uuid4()}"
        folder = Disk(self.folder, "").staging(log.owner, kind)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name)
        size = (folder / name).stat().st_size
        return log.publish([WrittenFile("", None, name, size)], at, owner=log.owner, chunk=chunk)

    def numbers(self) -> list[int]:
        rows = self.server.query(f"SELECT number FROM `{self.address.id}` ORDER BY number")
        return [row["number"] for row in rows]


@pytest.fixture
def pipeline(server: BigQueryServer, door: Door, tmp_path: Path) -> Pipeline:
    return Pipeline(server, door, tmp_path / "log")


def test_an_epoch_takes_one_append_and_one_flush_and_no_new_stream(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    pipeline.door.requests.clear()
    for number in (2, 3, 4):
        assert pipeline.publish(log, number)
    assert pipeline.door.requests == ["AppendRows", "FlushRows"] * 3
    assert pipeline.numbers() == [1, 2, 3, 4]


def test_the_table_is_partitioned_by_the_day_of_the_commit(pipeline: Pipeline) -> None:
    pipeline.publish(pipeline.new_process(), 1)
    table = pipeline.server.client.get_table(pipeline.address.id)
    assert table.time_partitioning.field == "commit_timestamp"
    assert table.clustering_fields == ["table_name"]


def test_rows_that_were_appended_and_not_committed_are_never_shown(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    with refused_commits(pipeline.folder), pytest.raises(Exception, match="_commits"):
        pipeline.publish(log, 2)
    assert pipeline.publish(log, 2)
    assert pipeline.publish(log, 3)
    assert pipeline.numbers() == [1, 2, 3]


@contextmanager
def refused_commits(folder: Path) -> Iterator[None]:
    """Have a disk refuse commits, after rows were appended."""
    commits = folder / "_commits"
    commits.rename(folder / "away")
    commits.write_text("")
    try:
        yield
    finally:
        commits.unlink()
        (folder / "away").rename(commits)


def test_streams_that_no_commit_names_are_finalized_when_later_ones_are_shown(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "_ATTEMPTS", 1)
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    streams, finalized = pipeline.server.streams

    def refuse_appends(method: str, name: str) -> None:
        if method == "AppendRows":
            raise RuntimeError("the network is gone")

    pipeline.door.before = refuse_appends
    for _ in range(2):
        with pytest.raises(PublishError):
            pipeline.publish(log, 2)
    pipeline.door.before = nothing
    assert pipeline.server.streams == (streams + 1, finalized)
    with refused_commits(pipeline.folder), pytest.raises(PublishError, match="_commits"):
        pipeline.publish(log, 2)
    assert pipeline.server.streams == (streams + 2, finalized)
    for number in (2, 3, 4, 5):
        assert pipeline.publish(log, number)
        assert pipeline.server.streams == (streams + 3, finalized + min(number - 1, 3))
    successor = pipeline.new_process()
    assert pipeline.publish(successor, 6)
    assert pipeline.numbers() == [1, 2, 3, 4, 5, 6]


def test_a_stream_that_can_not_be_finalized_holds_up_no_epoch(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(client: BigQueryWriteClient, **request: Any) -> None:
        asked.append(request["name"])
        raise RefreshError("the credentials are gone")

    monkeypatch.setattr(BigQueryWriteClient, "finalize_write_stream", refuse)
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    with refused_commits(pipeline.folder), pytest.raises(PublishError, match="_commits"):
        pipeline.publish(log, 2)
    assert pipeline.publish(log, 2)
    assert pipeline.publish(log, 3)
    assert len(asked) == 1
    assert pipeline.numbers() == [1, 2, 3]


def test_rows_of_a_commit_that_arrives_late_are_shown_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the commit of epoch 2 and its arrival, another stream has epoch 2's rows, too."""
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    create = LocalFiles.create
    late: list[tuple[LocalFiles, str, str]] = []

    def delay(files: LocalFiles, name: str, text: str, *, is_durable: bool = False) -> str | None:
        if not late:
            late.append((files, name, text))
            raise OSError("no answer came")
        create(*late[0])
        return create(files, name, text, is_durable=is_durable)

    monkeypatch.setattr(LocalFiles, "create", delay)
    with pytest.raises(PublishError):
        pipeline.publish(log, 2)
    with pytest.raises(PublishError):
        pipeline.publish(log, 2)
    monkeypatch.setattr(LocalFiles, "create", create)
    assert not pipeline.publish(log, 2)
    assert pipeline.publish(log, 3)
    assert pipeline.numbers() == [1, 2, 3]


def test_a_successor_shows_what_was_committed_and_not_shown(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    pipeline.door.before = refuse_flushes
    with pytest.raises(Exception, match="showing rows"):
        pipeline.publish(log, 1)
    assert pipeline.numbers() == []
    with pipeline.server.door() as pipeline.door:
        successor = pipeline.new_process()
        assert pipeline.numbers() == [1]
        assert not pipeline.publish(successor, 1)
        assert pipeline.publish(successor, 2)
        assert pipeline.numbers() == [1, 2]


def test_a_stream_that_is_gone_is_none_if_its_rows_were_shown(pipeline: Pipeline) -> None:
    pipeline.publish(pipeline.new_process(), 1)
    pipeline.server.remove_streams()
    successor = pipeline.new_process()
    assert pipeline.publish(successor, 2)
    assert pipeline.numbers() == [1, 2]


def test_a_stream_that_is_gone_when_a_change_comes_is_replaced(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    pipeline.server.remove_streams()
    assert pipeline.publish(log, 2)
    assert pipeline.publish(log, 3)
    assert pipeline.numbers() == [1, 2, 3]
    assert pipeline.door.requests.count("CreateWriteStream") == 2


@pytest.mark.parametrize("lost", ["before", "after"], ids=["requests", "answers"])
def test_an_epoch_of_many_requests_is_appended_to_one_stream_though_some_are_lost(
    pipeline: Pipeline, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_stream, "REQUEST_MAX", 1)
    requests = count(1)

    def lose(method: str, name: str) -> None:
        if method == "AppendRows" and next(requests) % 3 == 0:
            raise RuntimeError("lost")

    setattr(pipeline.door, lost, lose)
    log = pipeline.new_process()
    assert pipeline.publish(log, 1, rows=7)
    assert pipeline.numbers() == [1] * 7
    assert pipeline.door.requests.count("CreateWriteStream") == 1
    assert pipeline.door.requests.count("AppendRows") == 10


def test_a_request_has_as_many_rows_as_it_takes(pipeline: Pipeline) -> None:
    """Files are read by 10,000 rows, here some 40 bytes each."""
    log = pipeline.new_process()
    assert pipeline.publish(log, 1, rows=250_000)
    assert pipeline.numbers() == [1] * 250_000
    assert pipeline.door.requests.count("AppendRows") == 2


def test_a_column_that_the_service_does_not_know_yet_is_waited_for(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "_WAIT_S_MAX", 0.01)
    requests = count(1)

    def refuse(method: str, name: str) -> None:
        if method == "AppendRows" and next(requests) <= 9:
            raise ValueError("Input schema has more fields than BigQuery schema: 'number'")

    log = pipeline.new_process()
    pipeline.door.before = refuse
    assert pipeline.publish(log, 1)
    assert pipeline.numbers() == [1]
    assert pipeline.door.requests.count("CreateWriteStream") == 1
    monkeypatch.setattr(appends, "_COLUMNS_S_MAX", 0.0)
    requests = count(1)
    with pytest.raises(PublishError, match="more fields than"):
        pipeline.publish(log, 2)


def test_rows_whose_stream_is_gone_are_read_again_by_the_remedy(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    pipeline.door.before = refuse_flushes
    with pytest.raises(Exception, match="showing rows"):
        pipeline.publish(log, 2)
    pipeline.server.remove_streams()
    with pipeline.server.door() as pipeline.door:
        with pytest.raises(BigQueryError) as refused:
            pipeline.new_process()
        assert refused.value.hint.startswith(f"Remove the last file of {pipeline.folder}/_commits")
        max((pipeline.folder / "_commits").iterdir()).unlink()
        successor = pipeline.new_process()
        assert pipeline.publish(successor, 2)
        assert pipeline.numbers() == [1, 2]


def test_each_chunk_of_a_scan_is_there_once_and_epochs_follow(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    assert pipeline.publish(log, 0, chunk=0)
    assert not pipeline.publish(log, 0, chunk=0)
    successor = pipeline.new_process()
    assert not pipeline.publish(successor, 0, chunk=0)
    assert pipeline.publish(successor, 0, chunk=1)
    assert pipeline.publish(successor, 1)
    assert pipeline.numbers() == [0, 0, 1]


def test_a_chunk_without_rows_leaves_nothing(pipeline: Pipeline) -> None:
    log = pipeline.new_process()
    assert log.publish([], START, owner=log.owner, chunk=0)
    assert "AppendRows" not in pipeline.door.requests
    assert pipeline.publish(log, 1)
    assert pipeline.numbers() == [1]


def test_a_log_that_was_restored_without_epochs_that_bigquery_has_is_refused(
    pipeline: Pipeline,
) -> None:
    log = pipeline.new_process()
    pipeline.publish(log, 1)
    restored = {path: path.read_bytes() for path in (pipeline.folder / "_commits").iterdir()}
    pipeline.publish(log, 2)
    for path in (pipeline.folder / "_commits").iterdir():
        if path not in restored:
            path.unlink()
    with pytest.raises(ObjectStoreError, match="later than the last epoch"):
        pipeline.new_process(START + timedelta(seconds=1))


def test_a_table_of_another_shape_is_refused_and_left_alone(pipeline: Pipeline) -> None:
    client = pipeline.server.client
    client.create_table(Table(pipeline.address.id, [SchemaField("number", "INTEGER")]))
    with pytest.raises(BigQueryError, match=r"commit_timestamp is TIMESTAMP .* no such column"):
        pipeline.new_process()
    client.delete_table(pipeline.address.id)
    fields = [
        SchemaField("commit_timestamp", "TIMESTAMP"),
        SchemaField("low_watermark", "TIMESTAMP"),
        SchemaField("server_transaction_id", "STRING"),
        SchemaField("table_name", "STRING"),
        SchemaField("number", "STRING", "REPEATED"),
    ]
    client.create_table(Table(pipeline.address.id, fields))
    log = pipeline.new_process()
    with pytest.raises(BigQueryError, match=r"number is INTEGER .* has STRING REPEATED") as refused:
        pipeline.publish(log, 1)
    assert "Name another table" in refused.value.hint
    assert pipeline.numbers() == []


def test_a_dataset_that_is_missing_is_named_with_the_command_that_makes_it(
    server: BigQueryServer, door: Door, tmp_path: Path
) -> None:
    place = Disk(tmp_path, str(tmp_path))
    dataset = Dataset(TableAddress(PROJECT, "nowhere", "changes"), server.options(door))
    with pytest.raises(BigQueryError, match="looking at the dataset was refused") as refused:
        ChangesTable(dataset, "changes", place).check()
    assert refused.value.hint == f"Make the dataset: bq mk --dataset {PROJECT}:nowhere"


def test_a_view_in_the_tables_place_is_refused(pipeline: Pipeline) -> None:
    view = Table(pipeline.address.id)
    view.view_query = "SELECT 1 AS number"
    pipeline.server.client.create_table(view)
    with pytest.raises(BigQueryError, match="is a view"):
        pipeline.new_process()


def table_with(**properties: Any) -> Table:
    """Return a table as BigQuery describes it; the emulator leaves these properties out."""
    names = {"projectId": PROJECT, "datasetId": DATASET, "tableId": "Orders"}
    return Table.from_api_repr({"tableReference": names, "type": "TABLE", **properties})


def test_a_table_that_asks_queries_for_partitions_is_refused() -> None:
    asking = table_with(requirePartitionFilter=True)
    with pytest.raises(BigQueryError, match="queries that name no partition") as refused:
        require_usable(asking, is_merged=False)
    assert refused.value.hint == "bq update --norequire_partition_filter lake.Orders"


def test_rows_in_the_streaming_buffer_stop_a_mirror_and_no_changelog() -> None:
    buffered = {"estimatedRows": "1", "estimatedBytes": "8", "oldestEntryTime": "1"}
    there = table_with(streamingBuffer=buffered)
    require_usable(there, is_merged=False)
    with pytest.raises(BigQueryError, match="has rows in its streaming buffer") as refused:
        require_usable(there, is_merged=True)
    assert "within 90 minutes" in refused.value.hint


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            Forbidden("Permission bigquery.tables.create denied on dataset shop-prod:lake"),
            "roles/bigquery.dataEditor",
        ),
        (
            Forbidden("Caller lacks serviceusage.services.use on project billed"),
            "GOOGLE_CLOUD_QUOTA_PROJECT",
        ),
        (NotFound("Not found: Dataset shop-prod:tables"), "Make the dataset"),
        (NotFound("Not found: Table shop-prod:lake.changes"), "Restore the table"),
    ],
)
def test_what_is_missing_is_named(error: Exception, hint: str) -> None:
    with (
        pytest.raises(BigQueryError) as refused,
        requests_to(TableAddress(PROJECT, DATASET, "changes"), "making tables"),
    ):
        raise error
    assert hint in refused.value.hint


def test_a_check_makes_no_table(server: BigQueryServer, door: Door) -> None:
    dataset = Dataset(TableAddress(PROJECT, DATASET, "changes"), server.options(door))
    before = dataset.names()
    dataset.check()
    assert dataset.names() == before
