"""The tables of a dataset of BigQuery's, as one process makes, alters and queries them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from google.api_core.exceptions import NotFound
from google.cloud import bigquery

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.clients import Clients, requests_to
from slackwater.spark_sink.output.bigquery.row_stream import RowStream
from slackwater.spark_sink.output.bigquery.upsert_stream import UpsertStream

# Never made: whether it could be is asked.
_PROBE: Final = "_slackwater_check"
# Of DDL, a query or a transaction; then it is tried again.
_JOB_S_MAX: Final = 600.0
# Of a dataset that states none.
_TIME_TRAVEL_HOURS: Final = 168


class Dataset:
    """A dataset.

    Args:
        address: of any of its tables.
        options: see Clients.
    """

    def __init__(self, address: TableAddress, options: Mapping[str, str]) -> None:
        self._any = address
        self._clients = Clients(address.project, options)
        self._streams: dict[str, RowStream] = {}
        self._upserts: dict[str, UpsertStream] = {}

    @property
    def id(self) -> str:
        """Its id, with the project's."""
        return f"{self._any.project}.{self._any.dataset}"

    def address(self, table: str) -> TableAddress:
        """Return the address of one of its tables."""
        return replace(self._any, table=table)

    def stream(self, table: str) -> RowStream:
        """Return the stream by which this process appends to a table."""
        if table not in self._streams:
            self._streams[table] = RowStream(self._clients, self.address(table))
        return self._streams[table]

    def upserts(self, table: str) -> UpsertStream:
        """Return the stream of changes by which this process keeps a table."""
        if table not in self._upserts:
            self._upserts[table] = UpsertStream(self._clients, self.address(table))
        return self._upserts[table]

    def names(self) -> list[str]:
        """Return the names of its tables and views.

        Raises:
            BigQueryError, PublishError: see requests_to().
        """
        with requests_to(self.address("*"), "listing tables"):
            listed = self._clients.tables.list_tables(self.id, retry=self._clients.retry)
            return [item.table_id for item in listed]

    def table(self, name: str) -> bigquery.Table | None:
        """Return a table as it is; None if there is none."""
        with requests_to(self.address(name), "looking at the table"):
            try:
                return self._clients.tables.get_table(
                    self.address(name).id, retry=self._clients.retry
                )
            except NotFound:
                return None

    def make(
        self, name: str, fields: Sequence[bigquery.SchemaField] = (), **properties: Any
    ) -> bigquery.Table:
        """Make a table, or the view of a query, and return it; or the one that is there.

        Args:
            name: its.
            fields: its columns.
            properties: those of google.cloud.bigquery.Table.
        """
        with requests_to(self.address(name), "making the table"):
            table = bigquery.Table(self.address(name).id, fields)
            for key, value in properties.items():
                setattr(table, key, value)
            return self._clients.tables.create_table(
                table, exists_ok=True, retry=self._clients.retry
            )

    def unclustered(self, table: bigquery.Table) -> None:
        """Take a table's clustering away: a column that it is by can't be renamed."""
        table.clustering_fields = None
        self._update(table, "clustering_fields")

    def set_staleness(self, name: str, staleness: str | None) -> str | None:
        """Set how far behind queries of a table may be, and return what was set before.

        Args:
            name: the table's.
            staleness: an interval, as the REST API writes it; None for queries that see all.
        """
        table = self.table(name)
        if table is None or table.max_staleness == staleness:
            return staleness
        before: str | None = table.max_staleness
        table.max_staleness = staleness
        self._update(table, "max_staleness")
        return before

    def set_fields(self, table: bigquery.Table, fields: Sequence[bigquery.SchemaField]) -> None:
        """Give a table other columns: those that it has, and new ones.

        Raises:
            BigQueryError: it can't have them.
            PublishError: it was altered since it was read, or does not answer.
        """
        table.schema = list(fields)
        self._update(table, "schema")

    def _update(self, table: bigquery.Table, key: str) -> None:
        with requests_to(self.address(table.table_id), f"changing {key}"):
            self._clients.tables.update_table(table, [key], retry=self._clients.retry)

    def run(self, text: str, purpose: str, table: str = "*", **values: Any) -> Any:
        """Run a query or a script, which may be run again, and return its job's result.

        Args:
            text: the SQL.
            purpose: for messages.
            table: likewise.
            values: times or texts, by name, for @name in the text.
        """
        parameters = [
            bigquery.ScalarQueryParameter(name, _TYPES[type(value).__name__], value)
            for name, value in values.items()
        ]
        config = bigquery.QueryJobConfig(query_parameters=parameters)
        with requests_to(self.address(table), purpose):
            job = self._begin(text, config)
            return job.result(retry=self._clients.retry, timeout=_JOB_S_MAX, job_retry=None)

    def _begin(self, text: str, config: bigquery.QueryJobConfig) -> bigquery.QueryJob:
        return self._clients.tables.query(
            text,
            job_config=config,
            # BigQuery guesses that of a script by its first statement, which names no table.
            location=self._there.location,
            retry=self._clients.retry,
            job_retry=None,
        )

    def rows(self, text: str, table: str) -> pa.Table:
        """Return the rows of a query."""
        result = self.run(text, "a query", table)
        with requests_to(self.address(table), "a query"):
            return result.to_arrow(create_bqstorage_client=False)

    def batches(self, text: str, table: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, as they come."""
        result = self.run(text, "a query", table)
        with requests_to(self.address(table), "a query"):
            yield from result.to_arrow_iterable()

    @property
    def time_travel_hours(self) -> int:
        """The hours for which its tables can be read as they were."""
        return int(self._there.max_time_travel_hours or _TIME_TRAVEL_HOURS)

    @cached_property
    def _there(self) -> bigquery.Dataset:
        with requests_to(self._any, "looking at the dataset"):
            return self._clients.tables.get_dataset(self.id, retry=self._clients.retry)

    def check(self) -> None:
        """Ask whether the dataset is there, and whether jobs may run and make tables; make none.

        Raises:
            BigQueryError: it is not, or rights or credentials are missing.
            PublishError: BigQuery does not answer.
        """
        probe = self.address(_PROBE)
        with requests_to(probe, "making tables"):
            text = f"CREATE TABLE `{probe.id}` (number INT64)"
            self._begin(text, bigquery.QueryJobConfig(dry_run=True))


def require_usable(table: bigquery.Table, *, is_merged: bool) -> None:
    """Require that rows can be written to a table, and that all of them can be read.

    Args:
        table: as it is.
        is_merged: rows are updated and deleted.

    Raises:
        BigQueryError: it is a view, asks queries for partitions, or has rows that nobody can update
            yet (BigQuery's documentation, "Streaming data into BigQuery").
    """
    name = table.full_table_id or str(table.reference)
    if table.table_type not in (None, "TABLE"):
        raise BigQueryError(
            f"{name} is a {table.table_type.lower()}, to which no rows can be written.",
            "Name another table, or rename this one",
        )
    if table.require_partition_filter:
        raise BigQueryError(
            f"{name} refuses queries that name no partition, and what is written is asked of all.",
            f"bq update --norequire_partition_filter {table.dataset_id}.{table.table_id}",
        )
    if is_merged and table.streaming_buffer is not None:
        raise BigQueryError(
            f"{name} has rows in its streaming buffer: somebody else inserts into this mirror.",
            "Stop that; the rows can be updated, and the epoch merged, within 90 minutes",
        )


_TYPES: Final = {"datetime": "TIMESTAMP", "NoneType": "TIMESTAMP", "str": "STRING"}
