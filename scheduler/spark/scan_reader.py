"""The reader of an initial scan's parts, and the tables of a scan in the metadata store."""

from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from slackwater.reader.database.snapshot_read import snapshot_part
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.arrow import to_record_batch
from slackwater.reader.transport.connection import PartitionedRead
from slackwater.scheduler.spark.epochs_reader import ToRows
from slackwater.scheduler.spark.scan_options import ScanOptions
from slackwater.scheduler.spark.stream_reader import connection_of
from slackwater.state.models import ScanPart
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
    """A reader of the parts of an initial scan.

    A Spark task reads a part from its beginning. Spark tries a task that breaks again, and drops
    the rows of the failed attempt.

    Args:
        options: of the query.
        to_rows: makes the query's rows of the records; None if they are its rows.
    """

    def __init__(self, options: ScanOptions, to_rows: ToRows | None) -> None:
        self._options = options
        self._to_rows = to_rows

    def partitions(self) -> Sequence[InputPartition]:
        """Return one for each part."""
        return [InputPartition(part) for part in self._options.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the query's rows as Arrow batches."""
        with encoded_errors():
            batches = self._batches(partition.value)
            yield from batches if self._to_rows is None else self._to_rows(batches)

    def _batches(self, part: ScanPart) -> Iterator[pa.RecordBatch]:
        options, scan = self._options, self._options.scan
        batches = snapshot_part(
            connection_of(options.change_stream),
            options.dialect,
            tables_from_json(scan.tables)[part.table],
            # A commit timestamp has whole microseconds.
            floor_to_us(scan.at_ns),
            read=PartitionedRead(scan.session, scan.transaction_id),
            token=part.token,
            data_boost=options.data_boost,
        )
        for rows in batches:
            owners = [("", rows.num_rows)]
            yield to_record_batch(rows, owners, low_watermark_ns=scan.at_ns)
