"""The mirror of one Spanner table: a Delta or Iceberg table that is kept equal to it."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import ColumnNameError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import whole_rows
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.managed_table import ManagedTable
from slackwater.spark_sink.tables.row_merges.row_changes import (
    CHANGED_AT,
    IS_CHANGED,
    IS_MARKED_DELETED,
    LATEST,
    SOFT_DELETE_COLUMNS,
    RowChange,
)
from slackwater.spark_sink.tables.table_changes import AppendId, MergeId, MergePolicy, MissingColumn
from slackwater.spark_sink.tables.table_store import TableStore
from slackwater.timestamp import datetime_to_ns, datetime_to_rfc3339, parse_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.tables.row_merges.corrections import Corrections
    from slackwater.spark_sink.tables.table_access import TableAccess

_log = logging.getLogger(__name__)


class MirrorTable(ManagedTable):
    """The mirror of one Spanner table; ManagedTable explains the other arguments.

    Args:
        keeps_deleted: deleted rows stay, marked by the columns SOFT_DELETE_COLUMNS.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableStore,
        access: TableAccess,
        *,
        keeps_deleted: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(spark, path, table, table_format, access, properties=properties)
        self._keeps_deleted = keeps_deleted

    def merge(
        self,
        latest: DataFrame,
        columns: Sequence[Column],
        merge_id: MergeId,
        cleared_at: datetime | None = None,
        corrections: Corrections | None = None,
    ) -> None:
        """Apply an epoch's changes of the table in one commit.

        Args:
            latest: the rows of latest_changes().
            columns: the columns of their rows.
            merge_id: identifies the epoch.
            cleared_at: see MergePolicy.
            corrections: see merge_rows().

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        policy = self._policy(cleared_at, corrections)
        self._access.merge_large(latest, columns, self._targets(columns), merge_id, policy)

    def merge_rows(
        self,
        changes: Mapping[str, RowChange],
        columns: Sequence[Column],
        merge_id: MergeId,
        corrections: Corrections | None = None,
    ) -> bool:
        """Apply a small epoch's changes in one commit, without a job of Spark's.

        Args:
            changes: by the JSON of the key.
            columns: the columns of their rows; ensure_columns() has been called with them.
            merge_id: identifies the merge.
            corrections: those to make in the mirror before the changes, with the same columns; None
                for none.

        Returns:
            False if Spark has to fold the changes: columns had another type, or a value is not of
            its column's type.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
        from slackwater.typed_values import ValueTypeError

        if any(column.former_types or column.absent_at for column in columns):
            return False
        try:
            rows = self._renamed(latest_rows(changes, columns))
        except ValueTypeError:
            return False
        policy = self._policy(corrections=corrections)
        self._access.merge(rows, self._targets(columns), merge_id, policy)
        return True

    def _policy(
        self, cleared_at: datetime | None = None, corrections: Corrections | None = None
    ) -> MergePolicy:
        corrected = None if corrections is None else self._renamed(corrections.rows)
        return MergePolicy(self._keeps_deleted, cleared_at, corrected)

    def _targets(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns under the names that the mirror has for them."""
        names = self._own_names()
        return [replace(column, name=names[column.name.lower()]) for column in columns]

    def _renamed(self, rows: pa.Table) -> pa.Table:
        """Return rows of latest_rows() under the names of the mirror's columns."""
        names = {IS_CHANGED + name: IS_CHANGED + own for name, own in self._own_names().items()}
        names |= self._own_names()
        return rows.rename_columns([names.get(name.lower(), name) for name in rows.column_names])

    def _own_names(self) -> dict[str, str]:
        """Return the names of the columns; Spanner ignores case, and others do not."""
        return {field.name.lower(): field.name for field in (self._schema or ())}

    def forget(
        self, columns: Sequence[Column], merge_id: MergeId, cleared_at: datetime | None
    ) -> None:
        """Drop rows and values of a former table or columns; arguments as for merge()."""
        self._access.merge(None, columns, merge_id, self._policy(cleared_at))

    def ensure_columns(self, columns: Sequence[Column]) -> bool:
        """Create the mirror, or add the columns that it lacks; see ManagedTable.

        Raises:
            ColumnNameError: the mirror needs the name of a column for one of its own.
        """
        require_own_names(self.table, columns, keeps_deleted=self._keeps_deleted)
        return super().ensure_columns(columns)

    def current_rows(self, within: RowRange | None = None) -> DataFrame | None:
        """Return the rows that are not marked as deleted; None if the mirror does not exist.

        Args:
            within: see TableStore.read().
        """
        from pyspark.sql import functions as F

        if not self._format.exists(self._spark, self._path):
            return None
        rows = self._format.read(self._spark, self._path, within)
        return rows.where(~F.col(IS_MARKED_DELETED)) if self._keeps_deleted else rows

    @property
    def has_nulls_in_arrays(self) -> bool:
        """Whether the store of the mirror can have these; see TableStore."""
        return self._format.has_nulls_in_arrays

    def columns(self) -> tuple[Column, ...]:
        """Return the mirror's columns, not marked as the key's; none if it does not exist."""
        if not self._format.exists(self._spark, self._path):
            return ()
        self._load_schema()
        return tuple(
            Column(field.name, field.dataType.simpleString().upper(), is_key=False)
            for field in (self._schema or ())
            if not (self._keeps_deleted and field.name in SOFT_DELETE_COLUMNS)
        )

    def is_published_before(self, low_watermark: datetime) -> bool:
        """Return whether the mirror exists and has published an earlier low watermark."""
        stated = self._format.stated(self._spark, self._path)
        return stated is not None and parse_rfc3339(stated) < datetime_to_ns(low_watermark)

    def states_low_watermark(self, low_watermark: datetime) -> bool:
        """Return whether the mirror exists and states this very low watermark."""
        return self._format.stated(self._spark, self._path) == datetime_to_rfc3339(low_watermark)

    def rows_of(
        self, records: DataFrame, columns: Sequence[Column], *, is_checked: bool = False
    ) -> DataFrame:
        """Return the rows of an initial scan's records; see ManagedTable."""
        return whole_rows(records, self.table, columns, is_checked=is_checked)

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows of an initial scan, which are not deleted, as ManagedTable does."""
        from pyspark.sql import functions as F

        if self._keeps_deleted:
            at = F.lit(append_id.low_watermark)
            rows = rows.withColumns({IS_MARKED_DELETED: F.lit(False), CHANGED_AT: at})
        super().add(rows, append_id)

    def _column_definitions(self, columns: Sequence[Column]) -> str:
        soft = [f"{name} {kind}" for name, kind in SOFT_DELETE_COLUMNS.items()]
        return ", ".join([_definitions(columns), *(soft if self._keeps_deleted else ())])

    def _missing_columns(self, columns: Sequence[Column]) -> list[MissingColumn]:
        types = self._types()
        return [
            MissingColumn(None, column.name, column.spark_type, column.spanner_type)
            for column in columns
            if not self._format.holds(types.get(column.name.lower(), ""), column.spark_type)
        ]

    def _rename_retyped_columns(self, columns: Sequence[Column]) -> None:
        """Rename columns whose type has changed.

        In Spanner a column gets another type by being dropped and created again, so that no row
        has a value of the former type any more. A wider type of the same column would keep them.
        """
        types = self._types()
        for column in columns:
            former_type = types.get(column.name.lower(), column.spark_type)
            if self._format.holds(former_type, column.spark_type):
                continue
            own = self._own_names()[column.name.lower()]
            name = former_name(own, former_type, types, self._format.name_max)
            self._access.rename_column(own, name)
            _log.warning(
                "column %s of %s is %s now. In the mirror its former values are in %s; rows that"
                " do not change have no value in the new column",
                column.name,
                self.table,
                column.spanner_type,
                name,
            )
            self._load_schema()
            types = self._types()

    def _types(self) -> dict[str, str]:
        """Return the columns' types; Spark and Spanner both ignore case in names."""
        return {
            field.name.lower(): field.dataType.simpleString().upper()
            for field in (self._schema or ())
        }


def former_name(
    name: str, former_type: str, taken: Collection[str], longest: int | None = None
) -> str:
    """Return a free name for a column whose type has changed.

    Args:
        name: the column's.
        former_type: in Spark SQL.
        taken: the names of the table's columns in lower case.
        longest: how many characters a name can have; None for any number.
    """
    kind = re.sub(r"[^a-z0-9]+", "_", former_type.lower()).strip("_")
    ends = itertools.chain(
        [f"_was_{kind}"], (f"_was_{kind}_{number}" for number in itertools.count(2))
    )
    names = (name[: longest and longest - len(end)] + end for end in ends)
    return next(free for free in names if free.lower() not in taken)


def require_own_names(table: str, columns: Sequence[Column], *, keeps_deleted: bool) -> None:
    """Refuse a column whose name the mirror needs for one of its own.

    Args:
        table: the full name of the Spanner table.
        columns: the mirror's, except those of deleted rows.
        keeps_deleted: it has those, too.

    Raises:
        ColumnNameError: there is such a column.
    """
    own = {name.lower() for name in SOFT_DELETE_COLUMNS} if keeps_deleted else set()
    own |= {column.name.lower() for column in columns if column.nanoseconds_of is not None}
    for column in columns:
        name = column.name.lower()
        if column.nanoseconds_of is None and (name in own or name.startswith(LATEST)):
            remedies = ["leave the column out with filter.exclude_columns", "rename it"]
            if name in SOFT_DELETE_COLUMNS:
                remedies.insert(0, "set sink.deletes to apply")
            raise ColumnNameError(
                f"column {table}.{column.name}: its mirror needs that name for one of its own.",
                f"{remedies[0].capitalize()}, or {', or '.join(remedies[1:])}",
            )


def read_mirror(
    spark: SparkSession, path: str, table_format: TableStore, *, keeps_deleted: bool = False
) -> tuple[DataFrame, str] | None:
    """Read a mirror at the low watermark that it has published, without rows marked as deleted.

    Args:
        spark: a session with the format's jar.
        path: the mirror's.
        table_format: its format.
        keeps_deleted: see MirrorTable.

    Returns:
        The rows, and the low watermark in RFC 3339; None if the mirror has published none.
    """
    from pyspark.sql import functions as F

    state = table_format.read_at_watermark(spark, path)
    if state is None:
        return None
    rows, low_watermark = state
    if keeps_deleted:
        rows = rows.where(~F.col(IS_MARKED_DELETED)).drop(*SOFT_DELETE_COLUMNS)
    return rows, low_watermark


def conformed(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return a mirror's rows in the columns that its table has.

    A column that was added, or has another type, since the mirror's table last changed is not in
    the mirror yet: no row has a value in it. A column that was dropped stays in the mirror.
    """
    from pyspark.sql import functions as F

    types = {field.name.lower(): field.dataType for field in rows.schema.fields}
    return rows.select(
        *(
            (
                F.col(identifier(field.name))
                if types.get(field.name.lower()) == field.dataType
                else F.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in schema.fields
        )
    )


def without_nulls_in_arrays(rows: DataFrame) -> DataFrame:
    """Return a table's rows as a store has them that can't have these; see TableStore."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    def without(field: StructField) -> SparkColumn:
        array = F.coalesce(F.col(identifier(field.name)), F.array().cast(field.dataType))
        # As if values could be NULL, as in a mirror's type.
        return F.array_compact(array).cast(field.dataType)

    arrays = [field for field in rows.schema.fields if isinstance(field.dataType, ArrayType)]
    return rows.withColumns({field.name: without(field) for field in arrays})


def _definitions(columns: Sequence[Column]) -> str:
    return ", ".join(f"{identifier(column.name)} {column.spark_type}" for column in columns)
