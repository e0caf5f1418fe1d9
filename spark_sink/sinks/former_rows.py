"""The rows and values in mirrors of tables and columns that were dropped and made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import TableRecreatedError
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import literal, timestamp_literal
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DeletePolicy:
    """The treatment of rows that a table no longer has.

    Attributes:
        are_kept: they stay, marked as deleted; otherwise they are deleted.
        are_cleared: this holds for the rows of a table that was dropped and made again, too;
            otherwise the epoch fails.
    """

    are_kept: bool = False
    are_cleared: bool = True


def without_former(changes: DataFrame, cleared: Mapping[str, datetime]) -> DataFrame:
    """Return the changes without those of tables that were dropped since."""
    for table, at in cleared.items():
        is_former = f"table_name = {literal(table)} AND commit_timestamp <= {timestamp_literal(at)}"
        changes = changes.where(f"NOT ({is_former})")
    return changes


def renew(columns: Sequence[Column], renewed: Sequence[Column]) -> list[Column]:
    """Return columns, with the times at which some of them were absent."""
    times = {column.name.lower(): column.absent_at for column in renewed}
    return [replace(column, absent_at=times.get(column.name.lower())) for column in columns]


def former_columns(
    columns: Sequence[Column], table: str, recreated: RecreatedTables
) -> list[Column]:
    """Return the mirror's columns that hold values of a former column, each absent at a time.

    Args:
        columns: the mirror's.
        table: the full name of its table.
        recreated: the tables and columns that were dropped and made again.
    """
    times = {name.lower(): at for (owner, name), at in recreated.columns.items() if owner == table}
    return [
        replace(column, absent_at=times[column.name.lower()])
        for column in columns
        if column.name.lower() in times
    ]


def recreated_error(table: str, at: datetime) -> TableRecreatedError:
    """Return the error of a table whose mirror has the rows of a former one."""
    return TableRecreatedError(
        f"table {table} is another one since {datetime_to_rfc3339(at)}: it was dropped and made"
        " again, or has the name of a former one, whose rows its mirror has.",
        "Set sink.when_recreated to clear and run the pipeline again, within the database's"
        " version_retention_period; or mirror the tables again, under another pipeline name, path"
        " and checkpoint",
    )
