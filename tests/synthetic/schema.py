"""The schema of a synthetic change stream's database, and that of its answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import ColumnType, DataChangeRecord
from slackwater.spark_sink.sql.types import spanner_type
from tests.support.proto_messages import proto_metadata
from tests.support.spanner_messages import googlesql_metadata, postgresql_metadata
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script

COLUMN_NAMES: Final = (
    *("table_schema", "table_name", "column_name", "spanner_type", "ordinal_position"),
    *("is_generated", "column_ordering"),
)


def columns_in(script: Script) -> list[list[str]]:
    """The rows of the information schema: the columns of the listed records' tables."""
    columns: dict[str, Sequence[ColumnType]] = {}
    for partition in script.partitions:
        if isinstance(partition.rows, ListedRows):
            for record in partition.rows.records:
                if isinstance(record, DataChangeRecord):
                    columns[record.table_name] = record.column_types
    schema = "public" if script.dialect is Dialect.POSTGRESQL else ""
    rows = []
    for table, of_table in columns.items():
        positions = itertools.count(1)
        for column in of_table:
            position = str(next(positions)) if column.is_primary_key else ""
            kind = spanner_type(column.type)
            rows.append([schema, table, column.name, kind, position, "NEVER", ""])
    return rows


def metadata_of(script: Script) -> Any:
    """Return the metadata of an answer with records."""
    if script.is_mutable:
        return proto_metadata(script.dialect)
    if script.dialect is Dialect.POSTGRESQL:
        return postgresql_metadata()
    return googlesql_metadata()
