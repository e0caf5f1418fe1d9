"""The MERGE of a few rows into a Delta table by delta-rs, without a job of Spark's.

A commit creates the next file of Delta's log, if its name is free, and carries a transaction
identifier (Delta's protocol, "Transaction Identifiers") with the low watermark, which the table
that it changes did not have. So of two owners only one merges an epoch.

delta-rs would let others commit between, if it takes their files for ones without the epoch's rows.
It judges by statistics, some of which are less exact than the values. So a merge only follows the
version that it has read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import (
    column_types,
    inexact_statistics,
    without_statistics,
)
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.merge_statement import CHANGED_AT
from slackwater.spark_sink.sql.merge_statement import IS_DELETED as IS_MARKED_DELETED
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges import small_table
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
)
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY, MergeId, OtherRows
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.table import TableMerger
    from deltalake.transaction import CommitProperties, PostCommitHookProperties

_log = logging.getLogger(__name__)

_FLOATS: Final = frozenset({"DOUBLE", "FLOAT"})
_MIRROR: Final = "mirror"
_LATEST: Final = "latest"


class LargeTableError(DeltaUnsupportedError):
    """The table is too large to have its files written again."""


def merge_rows(
    direct: DirectTable,
    rows: pa.Table,
    columns: Sequence[Column],
    merge_id: MergeId,
    others: OtherRows,
    *,
    is_limited: bool = True,
) -> bool:
    """Apply an epoch's changes in one commit, unless the table has its low watermark.

    Args:
        direct: the table.
        rows: as latest_rows() makes them.
        columns: the columns of the rows, which the table has.
        merge_id: identifies the merge.
        others: what becomes of other rows.
        is_limited: a large table is left to Spark.

    Returns:
        Whether merges compact the table when that is due.

    Raises:
        LargeTableError: the table is large.
        DeltaUnsupportedError: the table has features that delta-rs can't write, or its disk does
            not take the commit.
        PublishError: another process committed since the table was read, or the object store fails;
            the epoch is read again.
    """
    of_changes = _mark_deleted if others.are_kept else _apply_deleted

    def clauses(merger: TableMerger) -> TableMerger:
        merger = of_changes(merger, columns, has_partial=_has_partial(rows))
        return _other_rows(merger, columns, others)

    return _commit(direct, merge_id, rows, _same_key(rows, columns), clauses, is_limited=is_limited)


def forget_rows(
    direct: DirectTable, columns: Sequence[Column], merge_id: MergeId, others: OtherRows
) -> None:
    """Drop what a former table or former columns left; arguments and errors as for merge_rows()."""
    import pyarrow as pa

    nothing = pa.table({"nothing": pa.array([], pa.bool_())})
    clauses = partial(_other_rows, columns=columns, others=others)
    _commit(direct, merge_id, nothing, "false", clauses, is_limited=False)


def _commit(
    direct: DirectTable,
    merge_id: MergeId,
    rows: pa.Table,
    condition: str,
    clauses: Callable[[TableMerger], TableMerger],
    *,
    is_limited: bool,
) -> bool:
    """Commit a merge directly after the version that it has read, unless the table has it.

    Returns:
        Whether it compacts the table when that is due: it does with a small one.
    """
    from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

    application, version = merge_id.application, merge_id.version
    transaction = Transaction(application, version)
    properties = CommitProperties(max_commit_retries=0, app_transactions=[transaction])
    # Checkpoints are has_merged()'s: half of the commits are not delta-rs's.
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    with direct.translating(is_for_spark=direct.is_local):
        table = direct.load_to_merge()
        latest = direct.transaction_version(table, application)
        if latest is not None and latest >= version:
            return False
        loaded = table.version()
        files, reason = _files_of(table)
        if is_limited and reason is not None:
            raise LargeTableError(reason)
        merger = table.merge(
            rows,
            condition,
            source_alias=_LATEST,
            target_alias=_MIRROR,
            # Otherwise no file is skipped by its statistics.
            streamed_exec=False,
            # Of all columns: the files that it writes have those that the epoch does not know, too.
            writer_properties=without_statistics(inexact_statistics(column_types(table.schema()))),
            commit_properties=properties,
            post_commithook_properties=hooks,
        )
        clauses(merger).execute()
        if table.version() == loaded:
            _add_transaction(table, properties, hooks)
            table.update_incremental()
        direct.has_merged(table, loaded, application, version)
        files_max = small_table.FILES_MAX if direct.is_local else small_table.OBJECTS_MAX
        if reason is None and files >= files_max:
            _compact(direct, table)
    return reason is None


def _add_transaction(
    table: DeltaTable, properties: CommitProperties, hooks: PostCommitHookProperties
) -> None:
    """Commit an epoch that has changed no row.

    The table learns of the epoch all the same: a former owner, whose epochs may end elsewhere, must
    not merge an earlier one after it.
    """
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        [],
        commit_properties=properties,
        post_commithook_properties=hooks,
    )


def publish_low_watermark(direct: DirectTable, merge_id: MergeId) -> None:
    """Write to a table's properties up to when it has all changes; see TableFormat.

    Raises:
        DeltaUnsupportedError: the driver can't commit to the table.
        PublishError: other processes go on committing at the same time, or the disk or the object
            store fails.
    """
    low_watermark = datetime_to_rfc3339(merge_id.low_watermark)

    def is_due(table: DeltaTable) -> bool:
        published = table.metadata().configuration.get(LOW_WATERMARK_PROPERTY)
        merged = direct.transaction_version(table, merge_id.application)
        return merge_id.may_be_published(published, merged)

    with direct.translating():
        direct.set_property(LOW_WATERMARK_PROPERTY, low_watermark, is_due)


def has_property(direct: DirectTable, name: str) -> bool:
    """Return whether a table says anything of a property.

    Raises:
        DeltaUnsupportedError: delta-rs can't read the table.
    """
    with direct.translating():
        return name in direct.load().metadata().configuration


def _files_of(table: DeltaTable) -> tuple[int, str | None]:
    """Return the number of files, and why the table is a large one; None for a small one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = pa.table(table.get_add_actions())
    totals = [pc.sum(files.column(name)).as_py() or 0 for name in ("size_bytes", "num_records")]
    return int(files.num_rows), small_table.reason_against(*totals)


def _compact(direct: DirectTable, table: DeltaTable) -> None:
    """Make one file of many. If that fails, a later merge does it."""
    from slackwater.spark_sink.output.delta_compaction import compact_loaded

    try:
        with delta_errors(direct.path):
            commits = compact_loaded(table, direct.path, direct.options)
    except (DeltaUnsupportedError, PublishError) as error:
        _log.info("%s was not compacted: %s", direct.path, error)
    else:
        direct.has_compacted(table, commits)


def _has_partial(rows: pa.Table) -> bool:
    return any(name.startswith(IS_CHANGED) for name in rows.column_names)


def _same_key(rows: pa.Table, columns: Sequence[Column]) -> str:
    """Return the join condition; a table without a key has at most one row."""
    key = [column for column in columns if column.is_key]
    # A plain comparison lets delta-rs skip files by their statistics. Together with another one
    # it compares each row with each.
    inexact = inexact_statistics({column.name: column.spark_type.lower() for column in key})
    has_null = any(rows.column(column.name).null_count for column in key)
    same = "IS NOT DISTINCT FROM" if inexact or has_null else "="
    return " AND ".join(_same_value(column, same) for column in key) or "true"


def _same_value(column: Column, same: str) -> str:
    mirror, latest = _of_mirror(column.name), _of_latest(column.name)
    if column.spark_type in _FLOATS:
        # Spark, and Spanner, take -0.0 for 0.0.
        mirror, latest = (f"CASE WHEN abs({v}) = 0 THEN 0.0 ELSE {v} END" for v in (mirror, latest))
    # DataFusion takes an AND that follows for a part of the right side of IS NOT DISTINCT FROM.
    return f"({mirror} {same} {latest})"


def _other_rows(merger: TableMerger, columns: Sequence[Column], others: OtherRows) -> TableMerger:
    """Add what becomes of the rows that the epoch does not change; as merge_statement() has it."""
    if others.cleared_at is None:
        absent = {_quoted(column.name): "NULL" for column in columns if column.absent_at}
        return merger.when_not_matched_by_source_update(absent) if absent else merger
    if not others.are_kept:
        return merger.when_not_matched_by_source_delete()
    at = datetime_to_rfc3339(others.cleared_at)
    mark = {_quoted(IS_MARKED_DELETED): "true", _quoted(CHANGED_AT): f"TIMESTAMP '{at}'"}
    return merger.when_not_matched_by_source_update(mark, f"NOT {_of_mirror(IS_MARKED_DELETED)}")


def _apply_deleted(
    merger: TableMerger, columns: Sequence[Column], *, has_partial: bool
) -> TableMerger:
    is_deleted = _of_latest(IS_DELETED)
    merger = merger.when_matched_delete(is_deleted)
    # All columns of a table may belong to its key.
    if _whole_row(columns):
        merger = _update(merger, columns, {}, has_partial=has_partial)
    return merger.when_not_matched_insert(_row(columns), f"NOT {is_deleted}")


def _mark_deleted(
    merger: TableMerger, columns: Sequence[Column], *, has_partial: bool
) -> TableMerger:
    mark = {
        _quoted(IS_MARKED_DELETED): _of_latest(IS_DELETED),
        _quoted(CHANGED_AT): _of_latest(COMMIT_TIMESTAMP),
    }
    merger = merger.when_matched_update(mark, _of_latest(IS_DELETED))
    merger = _update(merger, columns, mark, has_partial=has_partial)
    return merger.when_not_matched_insert(_row(columns) | mark)


def _update(
    merger: TableMerger,
    columns: Sequence[Column],
    mark: dict[str, str],
    *,
    has_partial: bool,
) -> TableMerger:
    whole = _whole_row(columns) | mark
    merger = merger.when_matched_update(whole, _of_latest(IS_WHOLE))
    return merger.when_matched_update(_changed_columns(columns) | mark) if has_partial else merger


def _row(columns: Sequence[Column]) -> dict[str, str]:
    return {_quoted(column.name): _of_latest(column.name) for column in columns}


def _whole_row(columns: Sequence[Column]) -> dict[str, str]:
    return _row([column for column in columns if column.is_set_by_update])


def _changed_columns(columns: Sequence[Column]) -> dict[str, str]:
    return {
        _quoted(column.name): _changed_value(column)
        for column in columns
        if column.is_set_by_update
    }


def _changed_value(column: Column) -> str:
    new = _of_latest(column.name)
    if column.is_key:
        return new
    is_changed = _of_latest(IS_CHANGED + column.name)
    unchanged = "NULL" if column.absent_at else _of_mirror(column.name)
    return f"CASE WHEN {is_changed} THEN {new} ELSE {unchanged} END"


def _of_mirror(name: str) -> str:
    return f"{_MIRROR}.{_quoted(name)}"


def _of_latest(name: str) -> str:
    return f"{_LATEST}.{_quoted(name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
