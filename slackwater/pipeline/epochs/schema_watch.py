"""The schema changes that an epoch's records do not show, found before its mirrors change.

A dropped table or column leaves no change record, and neither do tables that exchange names, or an
option by which the change stream leaves changes out. So Spanner is asked for the DDL statements
that were committed in the epoch. Without any since the last epoch, nothing else is read. If it does
not list them, the information schema is read as of the epoch's end, and as of some times since its
start.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import structlog

from slackwater.pipeline.source import SourceHandle, refuse_omissions
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.schema_at import (
    VERSIONS_KEPT_NS,
    Recreated,
    SchemaAt,
    recreated,
    schema_at,
    times_to_compare,
)
from slackwater.reader.database.schema_changes import (
    CHANGES_KEPT_NS,
    SchemaChange,
    changes_in,
    is_unchanged,
    reassigned_tables,
    recreated_columns,
    schema_changes,
)
from slackwater.reader.database.watched_tables import tables
from slackwater.reader.errors import ReaderError, UnavailableError
from slackwater.reader.transport.ddl_updates import PERMISSION
from slackwater.spark_sink.sink import CurrentRows, RecreatedTables
from slackwater.state.models import Plan
from slackwater.timestamp import format_rfc3339, ns_to_datetime

_log = structlog.get_logger("slackwater.pipeline.epochs.schema_watch")

# A permission may be granted meanwhile.
_ASK_AGAIN_S: Final = 300.0
_WAIT_S_MAX: Final = 60.0
_WAIT_S: Final = 1.0


class NoteSchema(Protocol):
    """A function that is told of the schema of each epoch."""

    def __call__(self, reassigned: Mapping[str, int], *, is_unchanged: bool) -> None:
        """Take note of it.

        Args:
            reassigned: the tables that have others' names, each with the last time before that.
            is_unchanged: the schema is that of the last epoch that was published.
        """


class SchemaWatch:
    """A watch that tells a sink of current rows which tables and columns were made again.

    Args:
        source: the change stream.
        sink: that is told.
        note_schema: is told of such tables, too.
    """

    def __init__(
        self,
        source: SourceHandle,
        sink: CurrentRows,
        note_schema: NoteSchema,
    ) -> None:
        self._source = source
        self._sink = sink
        self._note_schema = note_schema
        self._last: SchemaAt | None = None
        self._warnings: set[str] = set()
        self._ask_after_s = float("-inf")
        # Of the last epoch that was published after it was inspected here.
        self._published_ns: int | None = None

    def inspect(self, plan: Plan) -> None:
        """Inspect the schema's past in an epoch that is about to be published.

        Args:
            plan: its plan; it lies in the past.

        Raises:
            UnsupportedStreamError: the change stream leaves changes out now.
            ReaderError: Spanner can't be read, or is about to rename tables.
        """
        start_ns, end_ns = plan.start_ns, plan.end_ns
        changes = self._changes(start_ns)
        is_same = (
            changes is not None
            and start_ns == self._published_ns
            and is_unchanged(changes, start_ns, end_ns)
        )
        if not is_same:
            info = read_change_stream_info(self._source.connection)
            refuse_omissions(self._source.options.change_stream.change_stream, info, has_run=True)
        if changes is not None and not changes_in(changes, start_ns, end_ns):
            self._sink.drop_recreated(RecreatedTables())
            self._note_schema({}, is_unchanged=is_same)
            return
        recreated = self._recreated(changes, start_ns, end_ns)
        self._sink.drop_recreated(
            RecreatedTables(
                {table: ns_to_datetime(at_ns) for table, at_ns in recreated.tables.items()},
                {column: ns_to_datetime(at_ns) for column, at_ns in recreated.columns.items()},
            )
        )
        self._note_schema(recreated.tables, is_unchanged=is_same)

    def published(self, end_ns: int) -> None:
        """Note up to where the schema was looked at for good; a replay looks again."""
        self._published_ns = end_ns

    def _changes(self, start_ns: int) -> Sequence[SchemaChange] | None:
        """Return the DDL statements since a time; None if Spanner does not list them.

        Raises:
            ReaderError: Spanner can't be read, or is about to rename tables.
        """
        now_s = time.monotonic()
        if now_s < self._ask_after_s:
            return None
        if time.time_ns() - start_ns > CHANGES_KEPT_NS:
            self._warn(f"Spanner no longer lists the DDL statements of {format_rfc3339(start_ns)}")
            return None
        while True:
            changes = schema_changes(self._source.connection)
            if changes is None:
                self._ask_after_s = now_s + _ASK_AGAIN_S
                self._warn(f"the credentials lack {PERMISSION}")
                return None
            # It may have been committed by now.
            coming = [one.statement for one in changes if one.at_ns is None and one.renames]
            if not coming:
                return changes
            if time.monotonic() > now_s + _WAIT_S_MAX:
                raise UnavailableError(
                    f"a schema change that renames tables is not complete yet: {coming[0]}",
                    "The epoch waits for it, and is tried again",
                )
            time.sleep(_WAIT_S)

    def _recreated(
        self, changes: Sequence[SchemaChange] | None, start_ns: int, end_ns: int
    ) -> Recreated:
        """Return the tables and columns that have the names of earlier ones."""
        # With a role the information schema shows what was granted to it at that time: a table that
        # it does not show may be there.
        if self._source.options.change_stream.database_role:
            if changes is None:
                self._warn("the information schema shows a database role only what it may read")
                return Recreated({}, {})
            return Recreated(reassigned_tables(changes, self._names(), start_ns, end_ns), {})
        times = times_to_compare(start_ns, end_ns) if changes is None else [start_ns, end_ns]
        schemas = [schema for at_ns in times if (schema := self._schema_at(at_ns)) is not None]
        made = recreated(schemas)
        self._last = schemas[-1] if schemas else None
        if changes is None:
            return made
        names = self._last.columns if self._last is not None else self._names()
        reassigned = reassigned_tables(changes, names, start_ns, end_ns)
        columns = self._last.columns if self._last is not None else {}
        renewed = recreated_columns(changes, columns, start_ns, end_ns)
        tables = {**made.tables, **reassigned}
        return Recreated(
            tables,
            {
                column: at_ns
                for column, at_ns in {**made.columns, **renewed}.items()
                if column[0] not in tables
            },
        )

    def _names(self) -> list[str]:
        """Return the names of the database's tables as of now."""
        dialect = self._source.description.dialect
        return [table.name for table in tables(self._source.connection, dialect)]

    def _schema_at(self, at_ns: int) -> SchemaAt | None:
        if self._last is not None and self._last.at_ns == at_ns:
            return self._last
        try:
            return schema_at(self._source.connection, self._source.description.dialect, at_ns)
        except ReaderError:
            if time.time_ns() - at_ns < VERSIONS_KEPT_NS:
                raise
        self._warn(f"Spanner no longer keeps the versions of {format_rfc3339(at_ns)}")
        return None

    def _warn(self, reason: str) -> None:
        if not self._warnings:
            _log.warning(
                "can't see whether tables or columns were dropped and created again, or tables"
                " exchanged names",
                reason=reason,
            )
        self._warnings.add(reason)
