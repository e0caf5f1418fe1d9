"""Watermarks as data: beside the output, up to when it has everything.

A line of JSON an epoch, a file an hour of low watermarks. Whoever waits for a time waits until a
line has a low_watermark at or after it; everything committed up to then is in the output.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from slackwater.spark_sink.sink import EpochSummary
from slackwater.timestamp import datetime_to_rfc3339

FOLDER: Final = "_watermarks"


class WatermarkLog:
    """The lines of one output.

    Args:
        path: the output's directory, as Spark takes it.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def add_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Say that an initial scan is there: it is no epoch."""
        self._add(spark, None, records, 0, low_watermark)

    def add(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Say that an epoch is there; its replay takes the line's place."""
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
            "epoch": epoch_id,
            "low_watermark": datetime_to_rfc3339(low_watermark),
            "records": records,
            "transactions": transactions,
            "committed_at": datetime_to_rfc3339(datetime.now(UTC)),
        }
        lines = _parse_lines(folder.read(name))
        # Before a loss of the checkpoint was mended, epochs may have had other ends.
        lines = [earlier for earlier in lines if earlier["low_watermark"] < line["low_watermark"]]
        if lines and not (lines[-1]["records"] or line["records"]):
            # An idle database has a line that goes on.
            del lines[-1]
        folder.write(name, "".join(f"{json.dumps(entry)}\n" for entry in [*lines, line]))

    def last(self, spark: SparkSession) -> datetime | None:
        """The newest low watermark, in whole microseconds; None where there is none."""
        folder = _Folder(spark, f"{self._path}/{FOLDER}")
        for name in sorted(folder.names(), reverse=True):
            if lines := _parse_lines(folder.read(name)):
                return datetime.fromisoformat(lines[-1]["low_watermark"])
        return None


def _parse_lines(text: str) -> list[dict[str, Any]]:
    """The lines of a file, without one that a crash has cut off."""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class _Folder:
    """Small texts in a folder, each replaced at once, on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        jsc: Any = spark._jsc
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(path)
        self._files: Any = self._root.getFileSystem(jsc.hadoopConfiguration())
        # Hadoop would leave files of checksums that no rename takes along.
        is_local = self._files.getScheme() == "file"
        self._local = Path(self._root.toUri().getPath()) if is_local else None

    def names(self) -> list[str]:
        if self._local is not None:
            return [path.name for path in self._local.glob("[!.]*.json")]
        if not self._files.exists(self._root):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._root)]

    def read(self, name: str) -> str:
        """Empty where it is not there."""
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
        # Object stores replace a whole object; HDFS shows a file while it grows, and what is cut
        # off by a crash is written again by the replay.
        stream = self._files.create(self._jvm.org.apache.hadoop.fs.Path(self._root, name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
