"""Mirrors in BigQuery: changed all by one transaction, or each table by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from slackwater.spark_sink.errors import BigQueryError

Consistency = Literal["transaction", "table"]
# BigQuery's documentation, "TABLE_CONSTRAINTS view".
_KEY_MAX: Final = 16
_NO_KEYS: Final = frozenset({"BINARY", "BYTES", "DOUBLE", "FLOAT"})


@dataclass(frozen=True, slots=True)
class Mirroring:
    """A way to change mirrors.

    Attributes:
        consistency: all by one transaction, or each table by itself.
        max_staleness_ms: how far behind queries may be, in milliseconds; see UpsertedMirror.
    """

    consistency: Consistency = "transaction"
    max_staleness_ms: int | None = None


def require_primary_key(table: str, key: Mapping[str, str]) -> None:
    """Refuse a table whose key BigQuery can't have as its primary key.

    Args:
        table: the full name of the Spanner table.
        key: the types of the key's columns by their names, as Spark or BigQuery calls them.

    Raises:
        BigQueryError: it has no columns, too many, or one of another type.
    """
    others = [name for name, kind in key.items() if kind in _NO_KEYS]
    if not 0 < len(key) <= _KEY_MAX or others:
        wrong = f"has {len(key)} columns" if not others else f"has {others[0]}"
        raise BigQueryError(
            f"table {table}: its key {wrong}, which a primary key of BigQuery's can't have.",
            "Leave the table out with filter.exclude_tables, or set sink.consistency to"
            " transaction",
        )
