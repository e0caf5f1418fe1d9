"""The watermark log: files beside the output that say up to when it is complete.

It has a line of JSON for each epoch and a file for each hour of low watermarks. When a line has a
low_watermark at or after a time, everything committed up to that time is in the output.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import hadoop_conf, jvm_of
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "_watermarks"


@dataclass(frozen=True, slots=True)
class LoggedWatermark:
    """The last line of a watermark log.

    Attributes:
        low_watermark: in whole microseconds, UTC.
        pipeline: the pipeline that wrote it; None if an earlier version did.
    """

    low_watermark: datetime
    pipeline: str | None


def output_position(
    logged: LoggedWatermark | None, committed: datetime | None, *, is_one_commit: bool
) -> OutputPosition:
    """Return how far an output is written, from its watermark log and its commits.

    A process that dies between an epoch's last commit and its line leaves commits later than the
    log.

    Args:
        logged: the log's last line; None without one.
        committed: the low watermark of the latest epoch of which anything is visible.
        is_one_commit: an epoch becomes visible by one atomic commit, so that all of it is visible
            or nothing.
    """
    complete = None if logged is None else logged.low_watermark
    begun = committed
    if is_one_commit and committed is not None:
        complete = committed if complete is None else max(complete, committed)
    if begun is not None and complete is not None and begun <= complete:
        begun = None
    return OutputPosition(complete, begun, None if logged is None else logged.pipeline)


class WatermarkLog:
    """The watermark log of one output.

    Args:
        path: the output's directory, a path or URL that Spark accepts.
        pipeline: the pipeline's name.
    """

    def __init__(self, path: str, pipeline: str) -> None:
        self._path = path
        self._pipeline = pipeline

    def add_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Add the line of an initial scan, which has no epoch number."""
        self._add(spark, None, records, 0, low_watermark)

    def add(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Add the line of an epoch; a replay replaces it."""
        self._add(spark, epoch_id, summary.written, summary.transactions, low_watermark)

    def _add(
        self,
        spark: SparkSession,
        epoch_id: int | None,
        records: int,
        transactions: int,
        low_watermark: datetime,
    ) -> None:
        folder = _Folder(spark, f"{self._path}/{FOLDER}")
        name = f"{low_watermark.astimezone(UTC):%Y-%m-%dT%H}.json"
        line = {
            "pipeline": self._pipeline,
            "epoch": epoch_id,
            "low_watermark": datetime_to_rfc3339(low_watermark),
            "records": records,
            "transactions": transactions,
            "committed_at": datetime_to_rfc3339(datetime.now(UTC)),
        }
        lines = _parse_lines(folder.read(name))
        # Before a lost checkpoint was recovered, epochs may have ended elsewhere.
        lines = [earlier for earlier in lines if earlier["low_watermark"] < line["low_watermark"]]
        if lines and not (lines[-1]["records"] or line["records"]):
            # While a database is idle, its last line is moved forward.
            del lines[-1]
        folder.write(name, "".join(f"{json.dumps(entry)}\n" for entry in [*lines, line]))

    def last(self, spark: SparkSession) -> LoggedWatermark | None:
        """Return the latest line; None without one."""
        folder = _Folder(spark, f"{self._path}/{FOLDER}")
        for name in sorted(folder.names(), reverse=True):
            if lines := _parse_lines(folder.read(name)):
                at = datetime.fromisoformat(lines[-1]["low_watermark"])
                return LoggedWatermark(at, lines[-1].get("pipeline"))
        return None


def _parse_lines(text: str) -> list[dict[str, Any]]:
    """Parse the lines of a file, without one that a crash has cut off."""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class _Folder:
    """A folder of small text files, on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm = jvm_of(spark)
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files: Any = self._root.getFileSystem(hadoop_conf(spark))
        # Written without Hadoop, which would leave checksum files behind after a rename.
        is_local = self._files.getScheme() == "file"
        self._local = Path(self._root.toUri().getPath()) if is_local else None

    def names(self) -> list[str]:
        if self._local is not None:
            return [path.name for path in self._local.glob("[!.]*.json")]
        if not self._files.exists(self._root):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._root)]

    def read(self, name: str) -> str:
        """Return a file's text, empty if it does not exist."""
        if self._local is not None:
            path = self._local / name
            return path.read_text() if path.exists() else ""
        remote = self._jvm.org.apache.hadoop.fs.Path(self._root, name)
        if not self._files.exists(remote):
            return ""
        stream = self._files.open(remote)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        if self._local is not None:
            self._local.mkdir(parents=True, exist_ok=True)
            new = self._local / f".{name}.{os.getpid()}"
            new.write_text(text)
            new.replace(self._local / name)
            return
        # Object stores replace a whole object. HDFS shows a file while it grows; the replay writes
        # a line again that a crash has cut off.
        stream = self._files.create(self._jvm.org.apache.hadoop.fs.Path(self._root, name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
