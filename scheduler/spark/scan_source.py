"""The Spark source of an initial scan's parts; the program uses it, users do not.

Its reader is loaded only where a query reads; see scheduler.spark.data_source.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from slackwater.reader.change_stream import Dialect
from slackwater.reader.schema import ddl
from slackwater.scheduler.options import parse_options
from slackwater.state.models import Scan, ScanPart

if TYPE_CHECKING:
    from slackwater.scheduler.spark.stream_reader import ToRows

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
        from slackwater.scheduler.spark.scan_reader import ScanReader

        return ScanReader(self._scan, self._change_stream, self.to_rows(schema))

    def to_rows(self, schema: StructType) -> ToRows | None:  # noqa: ARG002
        """Return what makes rows of the query's schema; None if the records are its rows."""
        return None
