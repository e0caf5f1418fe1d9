"""A month of epochs in minutes: files, start-up and the cost of an epoch stay what they are.

Low watermarks go through thirty days, and the settings of maintenance are as short in proportion.
After each tenth of the month it is counted how many files there are, how long a new process takes
to learn where the output ends, and what an epoch took. At the end the output is compared with what
was written.

    python -m tests.proofs.month [--epochs 1500] [--only parquet delta mirror_iceberg ...]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.features import retention_properties
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.epoch_files import EpochFiles
from slackwater.spark_sink.output.epoch_groups import current_epochs
from slackwater.spark_sink.output.file_epochs import FileEpochs
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from slackwater.spark_sink.output.maintenance import Maintenance, MaintenancePolicy
from slackwater.spark_sink.output.position_files import PositionFiles
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.table_epochs import TableEpochs
from slackwater.spark_sink.output.table_files import DiskFiles
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.changelog import FileChangelog
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sinks.typed_changelogs import TypedChangelogs
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import PIPELINE, START, on_disk, record
from tests.support.programs import parsed_options
from tests.support.read_tables import sql_name

DAYS: Final = 30
TENTHS: Final = 10
COLUMNS: Final = {"Id": "INT64", "Name": "STRING"}
TABLE: Final = "Orders"
# Keys of which each epoch changes some; half of them are new ones, and as many are deleted.
KEYS: Final = 100
# How much more the end may have than the middle, of what it must not have more and more of.
GROWTH_MAX: Final = 1.6
KEEP_S_MIN: Final = 10.0
# What a busy machine makes of it, in files and seconds.
NOISE: Final = {"files": 50, "start_s": 0.3, "epoch_s": 0.3}

MakeSink = Callable[[Path, MaintenancePolicy], Sink]


def changelog(files: EpochFiles, path: Path) -> Sink:
    place = on_disk(path)
    return FileChangelog(files, WatermarkLog(place, PIPELINE), PositionFiles(place))


def parquet(path: Path, policy: MaintenancePolicy) -> Sink:
    files = FileEpochs(Disk(path, str(path)), "parquet", Preparation(), policy=policy)
    return changelog(files, path)


def delta(path: Path, policy: MaintenancePolicy) -> Sink:
    commits = DeltaCommits(
        str(path), {}, application_of(PIPELINE), retention_properties(policy.keep_s)
    )
    files = DiskFiles(path, str(path))
    return changelog(TableEpochs(commits, files, Preparation(), policy=policy), path)


def iceberg(path: Path, policy: MaintenancePolicy) -> Sink:
    commits = IcebergCommits(TablePlace(str(path)), application_of(PIPELINE))
    files = IcebergFiles(commits)
    return changelog(TableEpochs(commits, files, Preparation(), policy=policy), path)


def mirror(table_format: type[TableFormat]) -> MakeSink:
    return lambda path, policy: Mirrors(on_disk(path), PIPELINE, table_format(), policy=policy)


def typed(path: Path, policy: MaintenancePolicy) -> Sink:
    return TypedChangelogs(on_disk(path), PIPELINE, Delta(), policy=policy)


KINDS: Final[Mapping[str, MakeSink]] = {
    "parquet": parquet,
    "delta": delta,
    "iceberg": iceberg,
    "typed_delta": typed,
    "mirror_delta": mirror(Delta),
    "mirror_iceberg": mirror(Iceberg),
}


@dataclass(frozen=True, slots=True)
class Tenth:
    """What a tenth of the month left.

    Attributes:
        files: of the output, those with content. The numbers of Iceberg's old metadata files stay
            taken for a day, which no setting makes shorter.
        start_s: how long a new process took to learn where the output ends.
        epoch_s: what an epoch took, the median.
    """

    files: int
    start_s: float
    epoch_s: float


class Month:
    """One output through a month.

    Args:
        spark: a session.
        kind: of KINDS.
        root: the output's directory.
        epochs: how many there are.
    """

    def __init__(self, spark: SparkSession, kind: str, root: Path, epochs: int) -> None:
        self._spark = spark
        self._kind = kind
        self._root = root
        self._epochs = epochs
        self.records = 0
        self.rows: dict[int, str] = {}

    def run(self) -> list[Tenth]:
        """Write all epochs, and return the tenths."""
        # The first ones tell how long an epoch takes here.
        policy = MaintenancePolicy()
        sink, spent, tenths = self._new_sink(policy), list[float](), list[Tenth]()
        for epoch in range(self._epochs):
            spent.append(self._write(sink, epoch))
            if epoch == 20:
                day_s = statistics.median(spent) * self._epochs / DAYS
                # A reader, such as Spark's own commit, takes seconds.
                keep_s = max(day_s / 2, KEEP_S_MIN)
                policy = MaintenancePolicy(every_s=day_s / 2, keep_s=keep_s)
                sink = self._new_sink(policy)
            if (epoch + 1) % (self._epochs // TENTHS) == 0:
                _maintenance(sink).wait()
                begun = time.monotonic()
                sink = self._new_sink(policy)
                started = time.monotonic()
                files = sum(
                    path.is_file() and path.stat().st_size > 0 for path in self._root.rglob("*")
                )
                tenths.append(Tenth(files, started - begun, statistics.median(spent)))
                print(f"{self._kind} {len(tenths)}/{TENTHS}: {tenths[-1]}", flush=True)
                spent = []
        _maintenance(sink).wait()
        return tenths

    def _new_sink(self, policy: MaintenancePolicy) -> Sink:
        sink = KINDS[self._kind](self._root, policy)
        sink.position(self._spark)
        return sink

    def _write(self, sink: Sink, epoch: int) -> float:
        at = round(timedelta(days=DAYS) / timedelta(microseconds=1) * (epoch + 1) / self._epochs)
        changes = [
            record(
                "INSERT",
                [({"Id": str(key)}, {"Name": f"n{epoch}"}, {})],
                COLUMNS,
                at=at - 2,
                table=TABLE,
            )
            for key in (epoch % KEYS, KEYS + epoch)
        ]
        gone = epoch  # inserted KEYS epochs ago
        changes.append(
            record("DELETE", [({"Id": str(gone)}, {}, {})], COLUMNS, at=at - 1, table=TABLE)
        )
        self.rows |= {epoch % KEYS: f"n{epoch}", KEYS + epoch: f"n{epoch}"}
        self.rows.pop(gone, None)
        self.records += len(changes)
        frame = self._spark.createDataFrame(changes, ddl())
        begun = time.monotonic()
        summary = sink.stage(frame, epoch)
        sink.publish(self._spark, epoch, summary, START + timedelta(microseconds=at))
        return time.monotonic() - begun

    def differs(self) -> str | None:
        """Return how the output differs from what was written; None if it does not."""
        path = str(self._root)
        if self._kind.startswith("mirror"):
            made = Delta() if self._kind.endswith("delta") else Iceberg()
            state = read_mirror(self._spark, f"{path}/{TABLE}", made)
            rows = {} if state is None else {row["Id"]: row["Name"] for row in state[0].collect()}
            return None if rows == self.rows else f"{len(rows)} rows, not {len(self.rows)}"
        if self._kind == "parquet":
            changes = current_epochs(f"parquet.`{path}`")
            found = self._spark.sql(f"SELECT * FROM {changes}").count()
        elif self._kind == "iceberg":
            found = self._spark.table(sql_name(self._spark, Iceberg(), path)).count()
        else:
            table = path if self._kind == "delta" else f"{path}/{TABLE}"
            found = self._spark.read.format("delta").load(table).count()
        return None if found == self.records else f"{found} records, not {self.records}"


def _maintenance(sink: Sink) -> Maintenance:
    of: Any = sink._files if isinstance(sink, FileChangelog) else sink
    maintenance: Maintenance = of.maintenance
    return maintenance


def grows(tenths: list[Tenth]) -> list[str]:
    """Return what the last tenths have more of than those before them."""
    middle, end = tenths[2:6], tenths[6:]
    return [
        name
        for name, noise in NOISE.items()
        if statistics.median(getattr(tenth, name) for tenth in end)
        > noise + GROWTH_MAX * statistics.median(getattr(tenth, name) for tenth in middle)
    ]


def main() -> int:
    options = parsed_options(__doc__, epochs=1_500, only=list(KINDS))
    find_java()
    spark = start_spark(
        ["month"], "local[2]", {"spark.sql.shuffle.partitions": "2"}, ["delta", "iceberg"]
    )
    failures = []
    for kind in options.only:
        with tempfile.TemporaryDirectory() as folder:
            month = Month(spark, kind, Path(folder, "out"), options.epochs)
            tenths = month.run()
            failures += [f"{kind}: {name} grows: {tenths}" for name in grows(tenths)]
            if (difference := month.differs()) is not None:
                failures.append(f"{kind}: {difference}")
    stop_spark(spark)
    print("\n".join(failures) or f"{', '.join(options.only)}: flat and equal")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
