"""The typed changelog of one Spanner table: a Delta or Iceberg table of all its changes."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import ChangelogColumnError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.managed_table import ManagedTable
from slackwater.spark_sink.tables.table_changes import AppendId, MissingColumn
from slackwater.spark_sink.typed_rows import record_columns, typed_rows
from slackwater.typed_changes import AFTER, BEFORE, KEY, NAMED_COLUMNS, in_pieces, typed_changes

STRUCTS: Final = (KEY, BEFORE, AFTER)
CHANGED_COLUMNS: Final = (
    f"{NAMED_COLUMNS.name} STRUCT<{BEFORE}: ARRAY<STRING>, {AFTER}: ARRAY<STRING>>"
)
POSITION: Final[Mapping[str, str]] = {
    "commit_timestamp": "TIMESTAMP",
    "server_transaction_id": "STRING",
    "record_sequence": "STRING",
    "mod_number": "INT",
    "mod_type": "STRING",
}
METADATA: Final[Mapping[str, str]] = {
    "is_last_record_in_transaction_in_partition": "BOOLEAN",
    "value_capture_type": "STRING",
    "number_of_records_in_transaction": "BIGINT",
    "number_of_partitions_in_transaction": "BIGINT",
    "transaction_tag": "STRING",
    "is_system_transaction": "BOOLEAN",
    "partition_token": "STRING",
    "low_watermark": "TIMESTAMP",
}
_WRITTEN: Final = frozenset({*POSITION, *STRUCTS, NAMED_COLUMNS.name, *METADATA})

# For each struct its fields in their order, each with its Spark type.
StructFields = Mapping[str, Mapping[str, str]]


class ChangelogTable(ManagedTable):
    """The typed changelog of one Spanner table; ManagedTable explains the arguments."""

    @property
    def schema(self) -> StructType:
        """The table's columns that changes are written to. After ensure_columns()."""
        return StructType([field for field in self._schema or () if field.name in _WRITTEN])

    @property
    def structs(self) -> StructFields:
        """The table's structs and their fields; empty before ensure_columns()."""
        return {
            field.name: {f.name: f.dataType.simpleString().upper() for f in field.dataType.fields}
            for field in (self._schema or ())
            if field.name in STRUCTS and isinstance(field.dataType, StructType)
        }

    def rows_of(
        self, records: DataFrame, columns: Sequence[Column], *, is_checked: bool = False
    ) -> DataFrame:
        """Return a row for each mod of the table's records; see ManagedTable."""
        return typed_rows(records, self.table, columns, self.schema, is_checked=is_checked)

    def add_records(
        self, records: pa.Table, columns: Sequence[Column], append_id: AppendId
    ) -> None:
        """Append a row for each mod of a few records, without a job of Spark's.

        Args:
            records: rows of the output's contract, of any tables.
            columns: those that the table's records name. After ensure_columns().
            append_id: see add().

        Raises:
            ColumnValueError: a value is not of its column's type.
            ObjectStoreError, PublishError: see TableAccess.append_rows().
        """
        schema, of_records = arrow_schema_of(self.schema), record_columns(columns, self.schema)
        rows = [
            typed_changes(piece, self.table, schema, of_records)
            for batch in records.to_batches()
            for piece in in_pieces(batch)
        ]
        self._access.append_rows(pa.Table.from_batches(rows, schema), append_id)

    def _column_definitions(self, columns: Sequence[Column]) -> str:
        structs = _struct_fields(columns)
        return ", ".join(
            [
                *(f"{name} {kind}" for name, kind in POSITION.items()),
                *(f"{part} {_struct_type(structs[part])}" for part in STRUCTS if part in structs),
                CHANGED_COLUMNS,
                *(f"{name} {kind}" for name, kind in METADATA.items()),
            ]
        )

    def _missing_columns(self, columns: Sequence[Column]) -> list[MissingColumn]:
        present, missing = self.structs, []
        types = {column.name: column.spanner_type for column in columns}
        for part, needed in _struct_fields(columns).items():
            fields = self._lacking(part, present.get(part, {}), needed)
            if part in present:
                missing += [MissingColumn(part, name, fields[name], types[name]) for name in fields]
            elif fields:
                missing.append(MissingColumn(None, part, _struct_type(fields)))
        return missing

    def _lacking(
        self, part: str, present: Mapping[str, str], needed: Mapping[str, str]
    ) -> Mapping[str, str]:
        # Spark and Spanner both ignore case in names.
        present_types = {name.lower(): kind for name, kind in present.items()}
        for name, kind in needed.items():
            present_type = present_types.get(name.lower(), kind)
            if not self._format.holds(present_type, kind):
                raise ChangelogColumnError(
                    f"column {part}.{name} of the changelog {self._path} has type {present_type},"
                    f" but {self.table} now needs {kind}.",
                    "Move the changelog away, so that a new one is created, and run the pipeline"
                    " again",
                )
        return {name: kind for name, kind in needed.items() if name.lower() not in present_types}


def _struct_fields(columns: Sequence[Column]) -> dict[str, dict[str, str]]:
    """Return the structs that a table's columns need, without those that would have no fields."""
    everything = {column.name: column.spark_type for column in columns}
    key = {column.name: column.spark_type for column in columns if column.is_key}
    structs = {KEY: key, BEFORE: everything, AFTER: everything}
    return {part: fields for part, fields in structs.items() if fields}


def _struct_type(fields: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{identifier(name)}: {kind}' for name, kind in fields.items())}>"
