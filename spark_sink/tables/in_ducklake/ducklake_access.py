"""A managed table in a DuckLake: a mirror, or a typed changelog."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import digest, identifier
from slackwater.spark_sink.tables.by_transaction.transaction_access import TransactionAccess
from slackwater.spark_sink.tables.in_ducklake.ducklake_log import MAIN, DuckLakeLog
from slackwater.spark_sink.tables.in_ducklake.lake import ARRIVING, CATALOG
from slackwater.spark_sink.tables.table_access import schema_of_missing
from slackwater.spark_sink.tables.table_changes import MergePolicy, MissingColumn


class DuckLakeAccess(TransactionAccess[DuckLakeLog]):
    """The TableAccess of a table in a DuckLake."""

    deletes_apart = True

    @property
    def remedy(self) -> str:
        """The remedy where the table is another's; see TransactionAccess."""
        return "Name a lake of its own for this pipeline, or rename the table"

    def _make_table(
        self,
        schema: pa.Schema,
        properties: Mapping[str, str],  # noqa: ARG002 - it takes none
        columns: Sequence[Column],  # noqa: ARG002 - it has no keys
    ) -> None:
        """Make the table; see TransactionAccess."""
        self._database.run_with(f"CREATE TABLE {self.name} AS SELECT * FROM {ARRIVING}", (), schema)

    def _schema(self) -> pa.Schema:
        """Return the columns; see TransactionAccess."""
        self._require_there()
        fields = self._log.reader.schema(self.name)
        return pa.schema([field for field in fields if _is_known(field)])

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns; see TableAccess."""
        schema = schema_of_missing(columns).empty_table().flatten().schema
        with self._log.altering():
            described = self._database.run_with(
                f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {ARRIVING})",
                (),
                schema,
            )
            for name, kind in described:
                # PART.NAME is a field of a typed changelog's struct.
                path = ".".join(map(identifier, name.split(".")))
                self._run(f"ALTER TABLE {self.name} ADD COLUMN {path} {kind}")

    def _copy(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        with self._named():
            self._database.write_file(
                f"INSERT INTO {self.name} BY NAME SELECT * FROM {ARRIVING}", batches, schema
            )

    def _merge_rows(
        self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy
    ) -> None:
        super()._merge_rows(rows, columns, policy)
        self._run(f"DROP TABLE IF EXISTS {self._temporary}")

    def _staged(self, rows: pa.RecordBatchReader) -> str:
        self._database.run_with(
            f"CREATE TEMP TABLE {self._temporary} AS SELECT * FROM {ARRIVING}", rows, rows.schema
        )
        return self._temporary

    @property
    def _temporary(self) -> str:
        # Other tables are merged at the same time.
        return f"temp.staged_{digest(self.name)}"

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableAccess."""
        self._log.maintain(self._table, keep_s)

    def has_rows_at(self, snapshot: int) -> bool:
        """Return whether a snapshot has the table."""
        return bool(
            self._log.reader.run(
                f"SELECT 1 FROM {CATALOG}.ducklake_table AS t JOIN {CATALOG}.ducklake_schema AS s"
                " USING (schema_id) WHERE lower(s.schema_name) = lower($1)"
                " AND lower(t.table_name) = lower($2) AND t.begin_snapshot <= $3"
                " AND (t.end_snapshot IS NULL OR t.end_snapshot > $3) LIMIT 1",
                self._table.schema or MAIN,
                self._table.name,
                snapshot,
            )
        )


def _is_known(field: pa.Field) -> bool:
    """Return whether Spark has the type of a column."""
    try:
        from_arrow_type(field.type)
    except PySparkException:
        return False
    return True
