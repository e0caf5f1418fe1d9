"""A table's columns as the information schema has them, for what change records do not say."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackwater.column_types import spark_type
from slackwater.spark_sink.sql.types import spanner_type


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's columns.

    Attributes:
        key: the primary key's columns, in the key's order.
        columns: the types of the watched columns by name, as the information schema spells them,
            in the table's order.
        nullable: the columns that may be NULL.
    """

    # Not hashed, so that caches take it; the names of tables tell them apart.
    key: Sequence[str] = field(default=(), hash=False)
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    nullable: Collection[str] = field(default=(), hash=False)

    def with_columns_of(self, column_types: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Return the types of all columns: these, and those that a record has.

        A column that was added after the shape was read, or dropped before it, is only in the
        records.

        Args:
            column_types: of the record; where the type is another one, they decide.
        """
        types = dict(self.columns)
        for column in sorted(column_types, key=lambda column: int(column["ordinal_position"])):
            name, kind = column["name"], spanner_type(column["type"])
            if spark_type(types.get(name, "")) != spark_type(kind) or name not in types:
                types[name] = kind
        return types


def learned_shapes(
    before: Mapping[str, TableShape],
    read: Mapping[str, TableShape],
    tables: Iterable[str],
    *,
    has_columns: bool,
) -> dict[str, TableShape]:
    """Return what Spark's tasks get: each has all of it, so no more than messages need.

    Args:
        before: what was learned before. A table that was dropped since then stays as it was.
        read: the shapes of all tables.
        tables: those whose records are next; one that read lacks has the columns of its records.
        has_columns: columns are needed, of the tables with records. Else it is the order of keys,
            of all tables.
    """
    if not has_columns:
        keys = {table: TableShape(shape.key) for table, shape in read.items()}
        learned = {table: shape for table, shape in before.items() if shape.key}
        return {**dict.fromkeys([*before, *tables], TableShape()), **keys, **learned}
    wanted = dict.fromkeys([*before, *tables], TableShape())
    return {table: read.get(table, before.get(table, shape)) for table, shape in wanted.items()}
