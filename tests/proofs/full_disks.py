"""Disks that are full or read-only: each place of a pipeline, at its first start and in mid-run.

    python -m tests.proofs.full_disks [--only output-full-start ...]

Each run has one place on a file system of its own, which is filled or made read-only, and later
freed. The pipeline has to say which place it is, and to go on without a hand; its output is
compared with the truth. It needs the right to mount, as root or in a namespace of the user's own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import product
from pathlib import Path

from deltalake import DeltaTable

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator import running_emulator
from slackwater.timestamp import format_rfc3339
from tests.outputs.in_postgresql import PostgresqlLooker
from tests.proofs.mirrors import mirror_settings
from tests.support import mixed_load
from tests.support.emulators import database_on, own_database
from tests.support.mixed_load import MixedLoad
from tests.support.postgres import running_server
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

PLACES = {
    "output": "sink.path",
    "delta": "sink.path",
    "checkpoint": "sink.checkpoint",
    "store": "state.url",
    "postgresql": "PostgreSQL",
}
FAULTS = {"full": "make room", "read-only": "make it writable"}
MOMENTS = ("start", "run")
# A file system with a file that is open for writing, as SQLite's is, is not made read-only.
# PostgreSQL's server has the rest of its data elsewhere: without that it ends.
IMPOSSIBLE = ("store-read-only-run", "postgresql-read-only-start", "postgresql-read-only-run")
SIZE_MIB = 96
SECONDS_MAX = 300


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs")

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments, str(self.folder)], check=True)

    def break_down(self, fault: str) -> None:
        if fault == "read-only":
            self._make_read_only()
            return
        with suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def _make_read_only(self) -> None:
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return self._mount("-o", "remount,ro")
            except subprocess.CalledProcessError:
                # A file of it is open for writing just now.
                assert time.monotonic() < until
                time.sleep(0.05)

    def mend(self, fault: str) -> None:
        if fault == "read-only":
            self._mount("-o", "remount,rw")
        else:
            (self.folder / "ballast").unlink()

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    made = Disk(folder)
    try:
        yield made
    finally:
        made.remove()


def run(stream: ChangeStream, folder: Path, place: str, fault: str, moment: str) -> str:
    """Run one case; return what the pipeline said."""
    load, connection = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=3), Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    values = settings(stream, folder, format_rfc3339(start_ns))
    # With a page the process stays, whatever fails.
    values["http"] = {"listen": "127.0.0.1:0"}
    with disk(folder / "disk") as small, ExitStack() as stack:
        places = {
            "output": ("sink", "path", str(small.folder / "changes")),
            "delta": ("sink", "path", str(small.folder / "changes")),
            "checkpoint": ("sink", "checkpoint", str(small.folder / "checkpoint")),
            "store": ("state", "url", f"sqlite:///{small.folder / 'state.db'}"),
        }
        section, key, value = places[place]
        values[section][key] = value
        if place == "delta":
            values["sink"]["format"] = "delta"
        service = Service(values, folder, os.environ)
        if moment == "start":
            small.break_down(fault)
        service.start()
        stack.callback(service.kill)
        if moment == "run":
            load.run(transactions_per_second=20, seconds=1)
            service.wait_for_watermark(
                connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX
            )
            small.break_down(fault)
        load.run(transactions_per_second=20, seconds=1)
        said = wait_until_said(service, PLACES[place], FAULTS[fault])
        small.mend(fault)
        end_ns = connection.strong_read_timestamp_ns()
        if service.has_ended():
            # A place that can't be used at all is refused before anything begins.
            assert moment == "start", said
            service.start()
        service.wait_for_watermark(end_ns, seconds_max=SECONDS_MAX)
        assert service.drain() == 0
        truth = truth_of(stream, start_ns, end_ns)
        assert truth.records
        path = values["sink"]["path"]
        is_delta = place == "delta"
        output = DeltaTable(path).to_pyarrow_table() if is_delta else read_changelog(Path(path))
        require_equal(output, truth)
    connection.close()
    return said


def run_in_postgresql(folder: Path, fault: str, moment: str) -> str:
    """Run a case of mirrors in a server whose tables are on the small disk; see run()."""
    dialect = Dialect.GOOGLE_STANDARD_SQL
    statements = mixed_load.ddl(dialect, "OLD_AND_NEW_VALUES")
    with (
        own_database(dialect, statements, mixed_load.CHANGE_STREAM) as stream,
        running_server() as server,
        disk(folder / "disk") as small,
        ExitStack() as stack,
    ):
        url = server.replace("+psycopg", "")
        keep_tables_in(small.folder, url)
        connection, load = Connection(stream), MixedLoad(stream, dialect, seed=7)
        start_ns = connection.strong_read_timestamp_ns()
        values = mirror_settings(stream, folder, start_ns, table_format="postgresql")
        values["sink"]["path"] = url
        values["http"] = {"listen": "127.0.0.1:0"}
        looker = PostgresqlLooker(url, stream, dialect)
        service = Service(values, folder, os.environ)
        if moment == "start":
            small.break_down(fault)
        service.start()
        stack.callback(service.kill)
        if moment == "run":
            change(load)
            looker.look()
            small.break_down(fault)
        said = wait_until_said(
            service, PLACES["postgresql"], FAULTS[fault], meanwhile=lambda: change(load)
        )
        small.mend(fault)
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=SECONDS_MAX)
        assert service.drain() == 0
        assert looker.look_at_the_end()
        connection.close()
    return said


def change(load: MixedLoad) -> None:
    for _ in range(50):
        load.transaction()


def keep_tables_in(folder: Path, url: str) -> None:
    """Have a database keep new tables in a folder."""
    with closing(Database(url, "tests")) as database:
        # The server may run as another user.
        [[data]] = database.run("SELECT current_setting('data_directory')")
        owner = Path(data).stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        folder.parent.chmod(0o755)
        database.run(f"CREATE TABLESPACE small LOCATION '{folder}'")
        database.run("ALTER DATABASE postgres SET default_tablespace = small")


def wait_until_said(
    service: Service, setting: str, remedy: str, meanwhile: Callable[[], object] = lambda: None
) -> str:
    """Wait for a line of the log that names the setting and what to do."""
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        for line in service.log.read_text(errors="replace").splitlines():
            if setting in line and remedy in line.lower():
                return line
        meanwhile()
        if service.has_ended():
            return f"(ended) {service.log.read_text(errors='replace')[-600:]}"
        time.sleep(0.5)
    raise AssertionError(f"nothing names {setting}: {service.log.read_text()[-3_000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    chosen = parser.parse_args().only
    if os.geteuid() != 0:
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    failed = 0
    with running_emulator(partition_alive_seconds=2) as emulator:
        os.environ |= emulator.environment()
        for place, fault, moment in product(PLACES, FAULTS, MOMENTS):
            name = f"{place}-{fault}-{moment}"
            if name in IMPOSSIBLE or (chosen and name not in chosen):
                continue
            with tempfile.TemporaryDirectory(prefix="slackwater-disk-") as folder:
                try:
                    if place == "postgresql":
                        said = run_in_postgresql(Path(folder), fault, moment)
                    else:
                        said = run(database_on(emulator), Path(folder), place, fault, moment)
                    print(f"equal   {name}: {said[:600]}", flush=True)
                except Exception as error:  # noqa: BLE001 - the other cases run, too
                    failed += 1
                    print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
