"""Every log of commits: of two owners, at any two of their requests, one commits, and once.

The logs are those that the product has, in a real store's protocol. Two processes are two clients
at addresses of their own, at which each request can be held back, or its answer be lost.
"""

import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, ClassVar, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import PARQUET, TEXT
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.changes_table import ChangesTable
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.epoch_place import Form
from slackwater.spark_sink.output.file_log import EPOCHS, FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile, written_files_of
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.output.iceberg.store_io import StoreIO
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from slackwater.spark_sink.output.object_store import open_object_store, read
from slackwater.spark_sink.output.table_commits import DataFile
from slackwater.spark_sink.output.table_files import data_files
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door, bigquery_server
from tests.support.file_places import Hold
from tests.support.object_stores import ServedStore, nothing, s3
from tests.support.rest_clients import CLIENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)
APPLICATION: Final = "slackwater orders"
SCHEMA: Final = pa.schema({"number": pa.int64()})
# Of Iceberg: until a commit names them, nobody but their writer looks at them.
NOT_YET_NAMED: Final = re.compile(r"/data/part-|/metadata/(snap-|[0-9a-f-]{36}-m)")
# A table in a folder asks nothing of it.
NO_SPARK: Final = cast("SparkSession", None)


def parquet(rows: pa.Table) -> bytes:
    """Return a file with rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


class Log(ABC):
    """A log, as one process commits numbers to it: those after the last one through another.

    Attributes:
        last: the last number of the log, as the process knows it.
    """

    def __init__(self, url: str, store: ServedStore) -> None:
        self.url = url
        self.objects = open_object_store(url, store.options)
        self.options = store.options
        self.last = 0

    @abstractmethod
    def take_over(self) -> None:
        """Become the owner, and find the last number."""

    @abstractmethod
    def commit(self, through: int) -> bool:
        """Add numbers, and return False if they had been added."""

    @staticmethod
    @abstractmethod
    def visible(url: str, store: ServedStore) -> list[int]:
        """Return what a reader sees who is no owner."""


class Files(Log):
    """Epochs in files: see FileLog."""

    is_staged = False

    def __init__(self, url: str, store: ServedStore) -> None:
        super().__init__(url, store)
        self._log = FileLog(Bucket(url, store.options), Form(TEXT, "txt"))

    def take_over(self) -> None:
        latest = self._log.take_over(lambda: None).low_watermark
        self.last = 0 if latest is None else round((latest - START).total_seconds())

    def commit(self, through: int) -> bool:
        owner = self._log.owner
        lines = self.content(range(self.last + 1, through + 1))
        written = WrittenFile("", lines, None)
        if self.is_staged:
            written = WrittenFile("", None, f"_staging/{owner}/{EPOCHS}/{uuid.uuid4()}")
            self.objects.put(written.staged or "", lines)
        at = START + timedelta(seconds=through)
        done = self._log.publish([written], at, owner=owner)
        self.last = through
        return done

    def content(self, numbers: range) -> bytes:
        """Return the file with numbers, as a task has written it."""
        return "".join(f"{number}\n" for number in numbers).encode()

    @staticmethod
    def visible(url: str, store: ServedStore) -> list[int]:
        objects = open_object_store(url, store.direct_options)
        names = [item["path"] for page in objects.list() for item in page]
        contents = [read(objects, name) or b"" for name in names if name[0] != "_"]
        return sorted(int(number) for content in contents for number in content.split())


class LargeFiles(Files):
    """Those whose files do not fit into a commit, and are staged."""

    is_staged = True


class Delta(Log):
    """A Delta table: see DeltaCommits."""

    def __init__(self, url: str, store: ServedStore) -> None:
        super().__init__(url, store)
        self._commits = DeltaCommits(url, store.options, APPLICATION)

    def take_over(self) -> None:
        self._commits.take_over()
        self._commits.open(SCHEMA, ())
        self.last = self._commits.last_version(APPLICATION) or 0

    def commit(self, through: int) -> bool:
        content = parquet(pa.table({"number": range(self.last + 1, through + 1)}, SCHEMA))
        name = f"part-{uuid.uuid4()}.parquet"
        self.objects.put(name, content)
        file = DataFile(name, len(content), {}, None)
        done = self._commits.append([file], APPLICATION, through)
        self.last = through
        return done

    @staticmethod
    def visible(url: str, store: ServedStore) -> list[int]:
        table = DeltaTable(url, storage_options=store.direct_options)
        return sorted(table.to_pyarrow_table()["number"].to_pylist())


class Iceberg(Log):
    """An Iceberg table in a folder: see IcebergCommits and FolderCatalog."""

    def __init__(self, url: str, store: ServedStore) -> None:
        super().__init__(url, store)
        self._commits = IcebergCommits(TablePlace(url, options=store.options), APPLICATION)
        self._files = IcebergFiles(self._commits)

    def take_over(self) -> None:
        self._files.take_over(NO_SPARK)
        self._commits.take_over()
        self._commits.open(SCHEMA, ())
        self.last = self._commits.last_version(APPLICATION) or 0

    def commit(self, through: int) -> bool:
        rows = pa.table({"number": range(self.last + 1, through + 1)}, SCHEMA)
        written = written_files_of(self._files.writer(()), rows)
        done = self._commits.append(data_files(self._files, written), APPLICATION, through)
        self.last = through
        return done

    @staticmethod
    def visible(url: str, store: ServedStore) -> list[int]:
        files = StoreIO({}, store.direct_options)
        with files.new_input(f"{url}/metadata/version-hint.text").open() as hint:
            latest = f"{url}/metadata/v{int(hint.read())}.metadata.json"
        options = CLIENTS["s3"].python_options(store.direct)
        table = StaticTable.from_metadata(latest, options)
        return sorted(table.scan().to_arrow()["number"].to_pylist())


class BigQuery(Files):
    """Rows in BigQuery, whose log is in the store: see FileLog and ChangesTable."""

    server: ClassVar[BigQueryServer]
    doors: ClassVar[dict[str, Door]]

    def __init__(self, url: str, store: ServedStore) -> None:
        super().__init__(url, store)
        address = TableAddress(PROJECT, DATASET, url.rpartition("/")[2])
        place = Bucket(url, store.options)
        dataset = Dataset(address, self.server.options(self.doors[store.endpoint]))
        self._log = FileLog(
            place, Form(PARQUET, PARQUET), ChangesTable(dataset, address.table, place)
        )

    def content(self, numbers: range) -> bytes:
        at = [START + timedelta(seconds=number) for number in numbers]
        end = [START + timedelta(seconds=numbers[-1])] * len(numbers)
        columns = {
            "commit_timestamp": pa.array(at, pa.timestamp("us", "UTC")),
            "low_watermark": pa.array(end, pa.timestamp("us", "UTC")),
            "server_transaction_id": [str(number) for number in numbers],
            "table_name": ["T"] * len(numbers),
            "number": list(numbers),
        }
        return parquet(pa.table(columns))

    @staticmethod
    def visible(url: str, store: ServedStore) -> list[int]:
        table = f"{PROJECT}.{DATASET}.{url.rpartition('/')[2]}"
        rows = BigQuery.server.query(f"SELECT number FROM `{table}` ORDER BY number")
        return [row["number"] for row in rows]


LOGS: Final[dict[str, type[Log]]] = {
    "files": Files,
    "large files": LargeFiles,
    "Delta": Delta,
    "Iceberg": Iceberg,
    "BigQuery": BigQuery,
}
LONG: Final = pytest.mark.long


def of_each_log(*slow: type[Log]) -> pytest.MarkDecorator:
    """Run a test of each log; of those that make many requests, with the long ones."""
    logs = [
        pytest.param(log, id=name, marks=LONG if log in slow else ()) for name, log in LOGS.items()
    ]
    return pytest.mark.parametrize("log", logs)


@dataclass(frozen=True)
class Stores:
    """The same store, as two processes reach it."""

    first: ServedStore
    second: ServedStore

    def new_url(self) -> str:
        """Return the URL of a log that is not there yet."""
        return f"{self.first.path}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with s3() as store, store.for_another() as other:
        yield Stores(store, other)


@pytest.fixture(scope="module", autouse=True)
def _bigquery(stores: Stores) -> Iterator[None]:
    with bigquery_server() as BigQuery.server, ExitStack() as stack:
        BigQuery.doors = {}
        for store in (stores.first, stores.second):
            door = BigQuery.doors[store.endpoint] = stack.enter_context(BigQuery.server.door())
            door.before = lambda *request, store=store: store.before(*request)
            door.after = lambda *request, store=store: store.after(*request)
        yield


class Stop(Hold):
    """Holds a process back before one of its requests: of all, or of those that write.

    Before what others can't see it makes no difference whether others go on: it is the same as
    before the next request.
    """

    def __init__(self, step: int, *, is_of_all: bool = True) -> None:
        super().__init__(step)
        self._is_of_all = is_of_all

    def at_request(self, method: str, name: str) -> None:
        """Count a request, if it is one of those."""
        if NOT_YET_NAMED.search(name):
            return
        if self._is_of_all or method not in {"GET", "HEAD"}:
            self()


def require_one_history(log: type[Log], url: str, stores: Stores, *owners: Log) -> None:
    """Require that each number is there once, and that only a new owner adds others."""
    there = log.visible(url, stores.first)
    assert there == list(range(1, len(there) + 1))
    new = log(url, stores.first)
    new.take_over()
    # An owner may have been told that it is none, when its commit was the last one.
    assert new.last == len(there)
    for former in owners:
        with pytest.raises(PublishError):
            former.commit(new.last + 7)
    assert new.commit(new.last + 2)
    assert log.visible(url, stores.first) == list(range(1, new.last + 1))


@pytest.mark.parametrize(
    "is_of_all", [False, pytest.param(True, marks=LONG)], ids=["writes", "all requests"]
)
@pytest.mark.parametrize(
    "takes_over", [False, pytest.param(True, marks=LONG)], ids=["commits", "takes over, commits"]
)
@of_each_log(LargeFiles, Iceberg, BigQuery)
def test_of_two_owners_whose_requests_come_in_any_order_with_two_switches_one_commits(
    stores: Stores, log: type[Log], takes_over: bool, is_of_all: bool
) -> None:
    """The first stands before each of its requests while the second comes as far as each of its.

    Then the first goes on to its end, and the second after it. What a request reads does not change
    the log: so the second need only stand before those that write, unless they are all tried.
    """
    for step in count(1):
        for other_step in count(1):
            url = stores.new_url()
            first, second = log(url, stores.first), log(url, stores.second)
            first.take_over()
            first.commit(1)
            one, other = Stop(step), Stop(other_step, is_of_all=is_of_all)
            stores.first.before, stores.second.before = one.at_request, other.at_request

            def go_on(first: Log = first) -> None:
                if takes_over:
                    first.take_over()
                first.commit(first.last + 2)

            def succeed(second: Log = second) -> None:
                second.take_over()
                second.commit(second.last + 1)

            threads = [one.run(go_on), other.run(succeed)]
            one.may_go_on.set()
            threads[0].join()
            other.may_go_on.set()
            threads[1].join()
            stores.first.before = stores.second.before = nothing
            require_one_history(log, url, stores, first, second)
            if other.count < other_step:
                break
        if one.count < step:
            return


@pytest.mark.parametrize(
    "is_carried_out", [pytest.param(False, marks=LONG), True], ids=["request", "answer"]
)
@of_each_log(LargeFiles, Iceberg)
def test_an_owner_whose_request_or_answer_is_lost_commits_once(
    stores: Stores, log: type[Log], is_carried_out: bool
) -> None:
    for step in count(1):
        url = stores.new_url()
        owner = log(url, stores.first)
        requests = count(1)
        is_lost = threading.Event()

        def lose(
            method: str,
            name: str,
            step: int = step,
            requests: Iterator[int] = requests,
            is_lost: threading.Event = is_lost,
        ) -> None:
            if next(requests) == step:
                is_lost.set()
                # The server answers with an error, after which a client asks again.
                raise RuntimeError("lost")

        if is_carried_out:
            stores.first.after = lose
        else:
            stores.first.before = lose
        for through in (1, 2):
            for _ in range(3):
                try:
                    if owner.last == 0:
                        owner.take_over()
                    if owner.last < through:
                        owner.commit(through)
                    break
                except PublishError:
                    continue
        stores.first.before = stores.first.after = nothing
        assert log.visible(url, stores.first) == [1, 2]
        require_one_history(log, url, stores)
        if not is_lost.is_set():
            return
