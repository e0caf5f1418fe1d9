"""A former owner, frozen at a step of publishing, goes on after its successor's next epochs.

Nothing of the successor's may change: no file, no line of the watermark log, no row of a table. A
step is a call to the JVM, an operation on files, or of a catalog.

python -m tests.proofs.former_owner [--kind NAME ...] [--every 5]
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.java_gateway import GatewayClient
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.iceberg.folder_catalog import FolderCatalog
from slackwater.spark_sink.output.iceberg.store_io import StoreIO
from slackwater.spark_sink.output.small_files import LocalFiles
from slackwater.spark_sink.output.table_files import DiskFiles
from slackwater.spark_sink.sink import OutputPosition, Sink
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.spark_sink.tables.registry import TABLE_FORMATS
from tests.support.epoch_rows import (
    PIPELINE,
    Mods,
    Record,
    inserts,
    low_watermark,
    make_sink,
    record,
    write,
)
from tests.support.programs import parsed_options
from tests.support.read_tables import rows_in

KINDS: Mapping[str, Mapping[str, Any]] = {
    "parquet": {},
    "delta": {"format": "delta", "envelope": "flat"},
    "iceberg": {"format": "iceberg", "envelope": "flat"},
    "changelogs": {"kind": "changelogs"},
    "iceberg_changelogs": {"kind": "changelogs", "format": "iceberg"},
    "mirror": {"kind": "mirror"},
    "iceberg_mirror": {"kind": "mirror", "format": "iceberg"},
}
TABLES = ("sales.Orders", "Keys")
# The former owner's epoch, and the last of the successor's.
FROZEN, LAST = 2, 5
_OPERATIONS: tuple[tuple[Any, str], ...] = (
    (os, "rename"),
    (os, "unlink"),
    (os, "link"),
    (os, "listdir"),
    (DeltaTable, "create_checkpoint"),
    (LocalFiles, "create"),
    (LocalFiles, "read"),
    (DataFolder, "add"),
    (DataFolder, "opened"),
    (FolderCatalog, "load_table"),
    (FolderCatalog, "commit_table"),
    (StoreIO, "new_input"),
    (StoreIO, "new_output"),
    (DiskFiles, "place"),
)


def records(epoch: int) -> list[Record]:
    """Return an epoch's records: the first inserts rows, and each later one updates them."""
    if epoch == 1:
        return [inserts(1, 2, at=1, table=table) for table in TABLES]
    mods: Mods = [
        ({"Id": str(number)}, {"Name": f"e{epoch}"}, {"Name": "before"}) for number in (1, 2)
    ]
    columns = {"Id": "INT64", "Name": "STRING"}
    return [record("UPDATE", mods, columns, at=epoch, table=table) for table in TABLES]


@contextmanager
def stepping(before_step: Callable[[], None]) -> Iterator[None]:
    """Call a function before each step; not for its own steps."""
    is_inside = threading.local()

    def step() -> None:
        if not getattr(is_inside, "now", False):
            is_inside.now = True
            try:
                before_step()
            finally:
                is_inside.now = False

    send = GatewayClient.send_command

    def send_command(client: GatewayClient, command: str, *args: Any, **kwargs: Any) -> Any:
        # Not the removal of Python's references, which happens at any time.
        if not command.startswith("m\n"):
            step()
        return send(client, command, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatewayClient, "send_command", send_command)
        # Python 3.11 holds one lock for all schemas while one is loaded; two processes share none.
        patch.setattr(vars(DataFrame)["schema"], "lock", nullcontext(), raising=False)
        for module, name in _OPERATIONS:
            operation = getattr(module, name)

            def stepped(*args: Any, operation: Any = operation, **kwargs: Any) -> Any:
                step()
                return operation(*args, **kwargs)

            patch.setattr(module, name, stepped)
        yield


def frozen_at(spark: SparkSession, path: Path, kind: str, step: int) -> bool:
    """Freeze a former owner at a step of publishing, and require that it then changes nothing.

    Returns:
        Whether publishing has as many steps.
    """
    settings = KINDS[kind]

    def taken_over(session: SparkSession) -> Sink:
        sink = make_sink(path, **settings)
        sink.position(session)
        return sink

    write(spark, taken_over(spark), 1, *records(1))
    former = taken_over(spark)
    summary = former.stage(spark.createDataFrame(records(FROZEN), ddl()), FROZEN)
    steps, seen = 0, list[Mapping[str, Any]]()
    counting = threading.Lock()

    def before_step() -> None:
        nonlocal steps
        with counting:
            steps += 1
            is_here = steps == step
        if is_here:
            other = spark.newSession()
            successor = taken_over(other)
            for epoch in range(FROZEN, LAST + 1):
                write(other, successor, epoch, *records(epoch))
            seen.append(visible(spark.newSession(), path, kind))

    error: Exception | None = None
    with stepping(before_step):
        try:
            former.publish(spark, FROZEN, summary, low_watermark(FROZEN))
        except Exception as raised:  # noqa: BLE001 - it may fail in any way
            error = raised
    if not seen:
        assert error is None, (kind, step, error)
        return False
    now = visible(spark.newSession(), path, kind)
    position = replace(seen[0]["position"], has_tables=None, committed=None)
    assert position == OutputPosition(low_watermark(LAST), None, PIPELINE), (kind, step)
    for name, was in seen[0].items():
        if name not in now and not is_named(path, name):
            # It was the former owner's, who has removed what its refused commit named.
            continue
        assert now.get(name) == was, (kind, step, name, was, now.get(name), error)
    # Nothing has become visible either. Files that no commit names do not matter.
    others = {name for name in now.keys() - seen[0].keys() if not name.endswith(".parquet")}
    # To ask where a table stands is to take it over, which is a commit without files.
    at_once = ["_watermarks", "_delta_log", "_commits"]
    if kind in ("changelogs", "mirror"):
        at_once += [f"{table}/_delta_log" for table in TABLES]
    assert not {n for n in others if not n.startswith(tuple(at_once))}, (kind, step, others)
    return True


def is_named(path: Path, name: str) -> bool:
    """Return whether a commit to a Delta table names a file."""
    file = Path(name)
    log = (path / file).parent / "_delta_log"
    commits = list(log.glob("*.json"))
    return not commits or any(file.name in commit.read_text() for commit in commits)


def visible(spark: SparkSession, path: Path, kind: str) -> Mapping[str, Any]:
    """Return what a reader sees: all files but staged ones, rows of tables, and the position.

    To ask where an output stands is to take it over, of which Iceberg's metadata speak.
    """
    seen: dict[str, Any] = {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not {"_staging", "metadata"} & {*file.parts} and file.name[0] != "."
    }
    settings = KINDS[kind]
    of_tables = [path / table for table in TABLES] if "kind" in settings else [path]
    for folder in of_tables if kind != "parquet" else ():
        seen[f"rows of {folder.name}"] = sorted(map(repr, rows_in(folder)))
        if settings.get("kind") == "mirror":
            table_format = TABLE_FORMATS[settings.get("format", "delta")]()
            mirror = read_mirror(spark, str(folder), table_format)
            assert mirror is not None
            rows, watermark = mirror
            seen[f"mirror {folder.name}"] = (sorted(map(repr, rows.collect())), watermark)
    seen["position"] = make_sink(path, **settings).position(spark)
    return seen


def main() -> None:
    options = parsed_options(__doc__, kind=list(KINDS), every=1, first=1)
    find_java()
    spark = start_spark([PIPELINE], "local[2]", {}, ["delta", "iceberg"])
    failed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for kind in options.kind:
            step, wrong = options.first, list[int]()
            while True:
                try:
                    if not frozen_at(spark, Path(folder) / f"{kind}-{step}", kind, step):
                        break
                except AssertionError as error:
                    wrong.append(step)
                    print(str(error)[:600], flush=True)
                step += options.every
            print(
                f"{kind}: frozen at every {options.every}. of {step - 1} steps, wrong at {wrong}",
                flush=True,
            )
            failed += len(wrong)
    stop_spark(spark)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
