"""A former version's settings, metadata store, checkpoint and output, carried on by this one.

    python -m tests.proofs.upgrade BEFORE

BEFORE is the Python of an environment that has the former version, as `make install` makes it in a
checkout of it. That version runs under load and is killed with kill -9; this version goes on, and
what landed is compared with the truth. And the other way round: this version is drained, and the
former one goes on with an empty metadata store, as docs/backup.md says.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from slackwater.reader.change_stream import Dialect
from tests.proofs import mirrors, sinks
from tests.support import mixed_load
from tests.support.emulators import own_database
from tests.support.postgres import running_server
from tests.support.repository import ROOT

SINKS = ("parquet", "delta", "json", "changelogs")
PLACE = "import slackwater; print(slackwater.__file__)"


def require_another_version(python: str) -> None:
    """Refuse a Python that would run this checkout."""
    done = subprocess.run(
        [python, "-c", PLACE], cwd="/", capture_output=True, text=True, check=True, timeout=60
    )
    here = ROOT / "slackwater" / "__init__.py"
    if Path(done.stdout.strip()) == here:
        raise SystemExit(f"{python} runs this checkout, not a former version")


def upgrade_sinks(before: str, dialect: Dialect, state_url: str | None) -> None:
    with (
        own_database(dialect) as stream,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        equal = sinks.run(stream, Path(folder), SINKS, dialect, state_url, before)
    store = "SQLite" if state_url is None else "PostgreSQL"
    for name, count in equal.items():
        print(f"{dialect}, {store}, {name}: {count} equal", flush=True)


def go_back(before: str, dialect: Dialect) -> None:
    with (
        own_database(dialect) as stream,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        empty = f"sqlite:///{folder / 'of-the-former.db'}"
        equal = sinks.run(stream, folder, SINKS, dialect, after=(before, empty))
    for name, count in equal.items():
        print(f"{dialect}, back to the former version, {name}: {count} equal", flush=True)


def upgrade_mirrors(before: str) -> None:
    dialect, capture, deletes, table_format = mirrors.KINDS[0]
    with (
        own_database(dialect, mixed_load.ddl(dialect, capture), mixed_load.CHANGE_STREAM) as stream,
        tempfile.TemporaryDirectory() as folder,
    ):
        mirrors.run(
            stream,
            dialect,
            Path(folder),
            deletes=deletes,
            destination=mirrors.Destination(table_format),
            changes=300,
            looks=3,
            kills_after=[0],
            before=before,
        )
    print(f"{dialect}, mirrors in {table_format}: equal at 3 looks", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", metavar="BEFORE")
    python: str = parser.parse_args().before
    require_another_version(python)
    for dialect in Dialect:
        go_back(python, dialect)
    upgrade_sinks(python, Dialect.GOOGLE_STANDARD_SQL, None)
    with running_server() as url:
        upgrade_sinks(python, Dialect.POSTGRESQL, url)
    upgrade_mirrors(python)


if __name__ == "__main__":
    main()
