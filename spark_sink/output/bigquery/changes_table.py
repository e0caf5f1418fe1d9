"""The table with a changelog's rows, as a log of files has epochs shown in it.

Tasks stage an epoch's files where the log's commits are; the driver appends their rows.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Final

import pyarrow as pa
from google.cloud import bigquery

from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.bigquery.dataset import Dataset, require_usable
from slackwater.spark_sink.output.bigquery.schema import fields_of, require_fields
from slackwater.spark_sink.output.bigquery.shown_rows import ShownChange, ShownRows
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.epoch_names import epoch_name, parse_epoch_name
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile

# The columns that queries name.
_ASKED: Final = pa.schema(
    {
        "commit_timestamp": pa.timestamp("us", "UTC"),
        "low_watermark": pa.timestamp("us", "UTC"),
        "server_transaction_id": pa.string(),
    }
)


class ChangesTable(ShownRows):
    """Shows epochs in one table; see Shown.

    Args:
        dataset: the table's.
        table: its name.
        place: where the epochs are staged.
    """

    def __init__(self, dataset: Dataset, table: str, place: EpochPlace) -> None:
        super().__init__(dataset, place)
        self.path = dataset.address(table).id
        self._table = table
        self._is_ready = False

    def gather(
        self,
        owner: str,
        kind: str,
        written: Sequence[WrittenFile],
        name: str,
        form: Form,  # noqa: ARG002
    ) -> list[CommittedFile]:
        """Append an epoch's rows to a stream; see Shown."""
        reader = FileReader.of(self._place.writer(owner, kind, PARQUET, ()))
        batches = reader.batches(written)
        first = next(batches, None)
        if first is None:
            # A chunk of a scan may have no rows.
            return []
        self._make(first.schema)
        extent = self._dataset.stream(self._table).append(chain([first], batches))
        return [CommittedFile(name, content=ShownChange([extent]).to_bytes())]

    def _finish(self, change: ShownChange, name: str) -> None:
        """Do nothing: the rows are all; see ShownRows."""

    def first_after(self, name: str | None) -> str | None:
        """Return the first epoch after another one; see Shown.

        The commit timestamps of its rows are later, too: so only the last days are read.
        """
        after = None if name is None else parse_epoch_name(name)
        earliest = self._time(
            # Rows of a scan belong to no transaction.
            "SELECT MIN(low_watermark) FROM {table} WHERE server_transaction_id != ''"
            " AND (@time IS NULL OR (commit_timestamp > @time AND low_watermark > @time))",
            after,
        )
        return None if earliest is None else epoch_name(earliest)

    def _has_rows(self, table: str, name: str) -> bool:  # noqa: ARG002
        query = "SELECT MIN(low_watermark) FROM {table} WHERE low_watermark = @time"
        time = parse_epoch_name(name)
        return time is not None and self._time(query, time) is not None

    def _time(self, query: str, time: datetime | None) -> datetime | None:
        """Return the time that a query for one finds; None if there is no table."""
        table = self._dataset.table(self._table)
        if table is None:
            return None
        require_usable(table, is_merged=False)
        require_fields(self.path, table.schema, fields_of(_ASKED))
        text = query.format(table=f"`{self.path}`")
        [[earliest]] = self._dataset.run(text, "a query", self._table, time=time)
        first: datetime | None = earliest
        return first

    def _make(self, schema: pa.Schema) -> None:
        """Make the table, unless it is there; once, because it stays.

        Raises:
            BigQueryError: there is one of another shape.
        """
        if self._is_ready:
            return
        fields = fields_of(schema)
        there = self._dataset.make(
            self._table,
            fields,
            time_partitioning=bigquery.TimePartitioning(field="commit_timestamp"),
            clustering_fields=["table_name"],
        )
        require_fields(self.path, there.schema, fields)
        self._is_ready = True

    def check(self) -> None:
        """Ask whether the dataset is there, and a table that is there can take the rows.

        Raises:
            BigQueryError: it is not, it can't, or rights or credentials are missing.
            PublishError: BigQuery does not answer.
        """
        self._dataset.check()
        self.first_after(epoch_name(datetime.now().astimezone()))
