"""The Spark source of an initial scan's parts; the program uses it, users do not.

A Spark task reads a part from its beginning. Spark tries a task that breaks again, and drops the
rows of the failed attempt.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.snapshot_read import snapshot_part
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.arrow import to_record_batch
from slackwater.reader.schema import ddl
from slackwater.reader.transport.connection import PartitionedRead
from slackwater.scheduler.options import parse_options
from slackwater.scheduler.spark.stream_reader import ToRows, connection_of
from slackwater.state.models import Scan, ScanPart
from slackwater.timestamp import floor_to_us
from slackwater.worker_errors import encoded_errors

FORMAT: Final = "spanner_scan"
_SCAN: Final = "scan"


def scan_options(
    scan: Scan, parts: Sequence[ScanPart], dialect: Dialect, *, data_boost: bool
) -> dict[str, str]:
    """Return the options that the source needs beside those that name the change stream."""
    value = {
        "at_ns": scan.at_ns,
        "session": scan.session,
        "transaction_id": b64encode(scan.transaction_id).decode(),
        "tables": orjson.loads(scan.tables),
        "parts": [[part.number, part.table, b64encode(part.token).decode()] for part in parts],
        "dialect": dialect,
        "data_boost": data_boost,
    }
    return {_SCAN: orjson.dumps(value).decode()}


def tables_to_json(tables: Sequence[Table]) -> str:
    """Return the JSON text of tables, for Scan.tables."""
    return orjson.dumps({t.name: [dict(t.columns), list(t.key)] for t in tables}).decode()


def tables_from_json(text: str) -> dict[str, Table]:
    """Return the tables of Scan.tables, by their names."""
    return {
        name: Table(name, columns, tuple(key))
        for name, (columns, key) in orjson.loads(text).items()
    }


class SpannerScanDataSource(DataSource):
    """The rows of some parts of an initial scan, in the columns of the output's contract."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        texts = {name.lower(): text for name, text in options.items()}
        self._scan = orjson.loads(texts.pop(_SCAN))
        self._change_stream = parse_options(texts, os.environ).change_stream

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str | StructType:
        """Return the output's columns, as reader.schema declares them."""
        return ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for one query."""
        return _ScanReader(self._scan, self._change_stream, self.to_rows(schema))

    def to_rows(self, schema: StructType) -> ToRows | None:  # noqa: ARG002
        """Return what makes rows of the query's schema; None if the records are its rows."""
        return None


class _ScanReader(DataSourceReader):
    def __init__(self, scan: dict[str, Any], change_stream: Any, to_rows: ToRows | None) -> None:
        self._scan = scan
        self._change_stream = change_stream
        self._to_rows = to_rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._scan["parts"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with encoded_errors():
            batches = self._batches(partition)
            yield from batches if self._to_rows is None else self._to_rows(batches)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _, name, token = partition.value
        scan = self._scan
        batches = snapshot_part(
            connection_of(self._change_stream),
            Dialect(scan["dialect"]),
            tables_from_json(orjson.dumps(scan["tables"]).decode())[name],
            # A commit timestamp has whole microseconds.
            floor_to_us(scan["at_ns"]),
            read=PartitionedRead(scan["session"], b64decode(scan["transaction_id"])),
            token=b64decode(token),
            data_boost=scan["data_boost"],
        )
        for rows in batches:
            owners = [("", rows.num_rows)]
            yield to_record_batch(rows, owners, low_watermark_ns=scan["at_ns"])
