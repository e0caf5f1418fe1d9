"""The reader of an initial scan's parts, and the tables of a scan in the metadata store."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.snapshot_read import snapshot_part
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.arrow import to_record_batch
from slackwater.reader.transport.connection import PartitionedRead
from slackwater.scheduler.spark.stream_reader import ToRows, connection_of
from slackwater.timestamp import floor_to_us
from slackwater.worker_errors import encoded_errors


def tables_to_json(tables: Sequence[Table]) -> str:
    """Return the JSON text of tables, for Scan.tables."""
    return orjson.dumps({t.name: [dict(t.columns), list(t.key)] for t in tables}).decode()


def tables_from_json(text: str) -> dict[str, Table]:
    """Return the tables of Scan.tables, by their names."""
    return {
        name: Table(name, columns, tuple(key))
        for name, (columns, key) in orjson.loads(text).items()
    }


class ScanReader(DataSourceReader):
    """Reads the parts of an initial scan.

    A Spark task reads a part from its beginning. Spark tries a task that breaks again, and drops
    the rows of the failed attempt.

    Args:
        scan: the source's option.
        change_stream: of the database.
        to_rows: makes the query's rows of the records; None if they are its rows.
    """

    def __init__(
        self, scan: Mapping[str, Any], change_stream: ChangeStream, to_rows: ToRows | None
    ) -> None:
        self._scan = scan
        self._change_stream = change_stream
        self._to_rows = to_rows

    def partitions(self) -> Sequence[InputPartition]:
        """Return one for each part."""
        return [InputPartition(part) for part in self._scan["parts"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what the query's rows are made of, as Arrow batches."""
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
