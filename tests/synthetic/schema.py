"""The schema of a synthetic change stream's database, and that of its answers."""

import itertools
from typing import Any, Final

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import ColumnType, DataChangeRecord
from slackwater.spark_sink.sql.types import spanner_type
from tests.support.proto_messages import proto_metadata
from tests.support.spanner_messages import googlesql_metadata, postgresql_metadata
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script
from tests.synthetic.table import COLUMNS, NAME

COLUMN_NAMES: Final = (
    *("table_schema", "table_name", "column_name", "spanner_type", "ordinal_position"),
    *("is_generated", "column_ordering", "is_nullable"),
)

_IN_POSTGRESQL: Final = {
    "INT64": "bigint",
    "FLOAT64": "double precision",
    "FLOAT32": "real",
    "BOOL": "boolean",
    "STRING": "character varying",
    "BYTES": "bytea",
    "TIMESTAMP": "timestamp with time zone",
    "PG_NUMERIC": "numeric",
    "PG_JSONB": "jsonb",
}


def columns_in(script: Script) -> list[list[str]]:
    """The rows of the information schema: columns of the table and of the listed records'."""
    columns: dict[str, dict[str, ColumnType]] = {}
    for partition in script.partitions:
        if isinstance(partition.rows, ListedRows):
            for record in partition.rows.records:
                if isinstance(record, DataChangeRecord):
                    of_table = columns.setdefault(record.table_name, {})
                    of_table.update({column.name: column for column in record.column_types})
    rows = []
    for table, of_table in columns.items():
        positions = itertools.count(1)
        schema, _, name = table.rpartition(".")
        if script.dialect is Dialect.POSTGRESQL:
            schema = schema or "public"
        for column in sorted(of_table.values(), key=lambda column: column.ordinal_position):
            position = str(next(positions)) if column.is_primary_key else ""
            kind = _spelled(column.type, script.dialect)
            rows.append([schema, name, column.name, kind, position, "NEVER", "", "YES"])
    if script.table is not None:
        for place, (column_name, kind) in enumerate(COLUMNS.items()):
            position = "" if place else "1"
            rows.append(["", NAME, column_name, kind, position, "NEVER", "", "YES"])
    return rows


def _spelled(type_json: str, dialect: Dialect) -> str:
    """Return a type as the information schema spells it."""
    kind = spanner_type(type_json)
    if dialect is not Dialect.POSTGRESQL:
        return kind
    element = kind.removeprefix("ARRAY<").removesuffix(">")
    return _IN_POSTGRESQL.get(element, element.lower()) + "[]" * (element != kind)


def metadata_of(script: Script) -> Any:
    """Return the metadata of an answer with records."""
    if script.is_mutable:
        return proto_metadata(script.dialect)
    if script.dialect is Dialect.POSTGRESQL:
        return postgresql_metadata()
    return googlesql_metadata()
