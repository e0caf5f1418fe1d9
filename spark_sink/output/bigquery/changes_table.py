"""The table with a changelog's rows, as a log of files has epochs shown in it.

Tasks stage an epoch's files where the log's commits are. The driver appends their rows to a
buffered stream; the commit names the stream and the offset to which it is flushed. To flush it
again changes nothing, so whoever finds the commit may do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.bigquery.clients import Clients, requests_to
from slackwater.spark_sink.output.bigquery.row_stream import Extent, RowStream, StreamGoneError
from slackwater.spark_sink.output.bigquery.schema import fields_of, require_fields
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.epoch_names import epoch_name, parse_epoch_name
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile

if TYPE_CHECKING:
    from google.cloud import bigquery

# The chunks of a scan that are shown: their rows don't tell.
_CHUNKS: Final = "_chunks"
# The columns that queries name.
_ASKED: Final = pa.schema(
    {
        "commit_timestamp": pa.timestamp("us", "UTC"),
        "low_watermark": pa.timestamp("us", "UTC"),
        "server_transaction_id": pa.string(),
    }
)


class ChangesTable:
    """Shows epochs in a table of BigQuery's; see Shown.

    Args:
        clients: of the table.
        place: where the epochs are staged.
    """

    def __init__(self, clients: Clients, place: EpochPlace) -> None:
        self.path = clients.address.id
        self._clients = clients
        self._place = place
        self._stream = RowStream(clients)
        self._chunks = place.folder(_CHUNKS)
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
        extent = self._stream.append(chain([first], batches))
        return [CommittedFile(name, content=extent.to_bytes())]

    def give_name(self, file: CommittedFile) -> None:
        """Flush the stream that has the rows; see Shown.

        Raises:
            BigQueryError: the stream is gone, and its rows were never shown.
        """
        is_chunk = parse_epoch_name(file.name) is None
        if is_chunk and self.has(file.name):
            return
        extent = Extent.from_bytes(file.content or b"")
        try:
            self._stream.flush(extent)
        except StreamGoneError as error:
            if is_chunk or not self._has_rows(file.name):
                raise BigQueryError(
                    f"{self.path}: the stream with the rows of {file.name} is gone, as BigQuery"
                    " removes streams that nobody uses for days.",
                    f"Remove the last file of {self._place.path}/_commits: they are read again",
                ) from error
        if is_chunk:
            self._chunks.create(file.name, "")

    def has(self, name: str) -> bool:
        """Return whether a chunk of a scan is shown; see Shown."""
        return self._chunks.read(name) is not None

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

    def _has_rows(self, name: str) -> bool:
        query = "SELECT MIN(low_watermark) FROM {table} WHERE low_watermark = @time"
        return self._time(query, parse_epoch_name(name)) is not None

    def _time(self, query: str, time: datetime | None) -> datetime | None:
        """Return the time that a query for one finds; None if there is no table."""
        from google.cloud import bigquery

        with requests_to(self._clients.address, "a query"):
            table = self._table()
            if table is None:
                return None
            require_fields(self.path, table.schema, fields_of(_ASKED))
            parameter = bigquery.ScalarQueryParameter("time", "TIMESTAMP", time)
            config = bigquery.QueryJobConfig(query_parameters=[parameter])
            text = query.format(table=f"`{self.path}`")
            [[earliest]] = self._clients.tables.query_and_wait(
                text, job_config=config, retry=self._clients.retry
            )
        first: datetime | None = earliest
        return first

    def _make(self, schema: pa.Schema) -> None:
        """Make the table, unless it is there; once, because it stays.

        Raises:
            BigQueryError: there is one of another shape.
        """
        if self._is_ready:
            return
        from google.cloud import bigquery

        fields = fields_of(schema)
        with requests_to(self._clients.address, "making the table"):
            table = bigquery.Table(self.path, fields)
            table.time_partitioning = bigquery.TimePartitioning(field="commit_timestamp")
            table.clustering_fields = ["table_name"]
            there = self._clients.tables.create_table(
                table, exists_ok=True, retry=self._clients.retry
            )
        require_fields(self.path, there.schema, fields)
        self._is_ready = True

    def _table(self) -> bigquery.Table | None:
        """Return the table as it is; None if there is none."""
        from google.api_core.exceptions import NotFound

        try:
            return self._clients.tables.get_table(self.path, retry=self._clients.retry)
        except NotFound:
            return None

    def check(self) -> None:
        """Ask whether the dataset is there, and a table that is there can take the rows.

        Raises:
            BigQueryError: it is not, it can't, or rights or credentials are missing.
            PublishError: BigQuery does not answer.
        """
        with requests_to(self._clients.address, "looking at the dataset"):
            address = self._clients.address
            dataset = f"{address.project}.{address.dataset}"
            self._clients.tables.get_dataset(dataset, retry=self._clients.retry)
        self.first_after(epoch_name(datetime.now().astimezone()))
