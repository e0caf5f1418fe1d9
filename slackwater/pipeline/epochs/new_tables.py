"""Tables that a change stream begins to watch while the pipeline runs: they are read once.

Rows that such a table had before are in no change. The tables that the stream watches are read as
of an epoch's end, before the epoch becomes visible: from then on the table's changes are in the
epochs.
"""

import time
from collections.abc import Callable, Sequence

import structlog

from slackwater.reader.database.schema_at import VERSIONS_KEPT_NS
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.spark.scan_reader import tables_from_json
from slackwater.state.rescan_models import NEW_TABLE, Rescan
from slackwater.state.rescans import read_seen_tables, record_seen_tables
from slackwater.state.scans import read_scan
from slackwater.state.store import Store

_log = structlog.get_logger("slackwater.pipeline.epochs.new_tables")


class NewTables:
    """The search for new tables, and the requests to read them.

    Args:
        pipeline: its name.
        tables_at: returns the tables that the pipeline reads, as they were at a time.
        store: the metadata store.
        generation: of the lease under which this process owns the pipeline.
        every_s: the time between two polls, in seconds. Output that states how complete each table
            is needs a poll at each epoch: an epoch without one may have a new table.
    """

    def __init__(
        self,
        pipeline: str,
        tables_at: Callable[[int], Sequence[Table]],
        store: Store,
        generation: int,
        *,
        every_s: float,
    ) -> None:
        self._pipeline = pipeline
        self._tables_at = tables_at
        self._store = store
        self._generation = generation
        self._every_s = every_s
        self._seen: frozenset[str] | None = None
        self._looked_s = float("-inf")
        self._has_looked = False

    def request_new(self, end_ns: int, *, is_unchanged: bool = False) -> list[Rescan]:
        """Return requests for tables that are new at the end of an epoch; they are recorded.

        Args:
            end_ns: the epoch's end.
            is_unchanged: the schema is that of the last epoch for which this was called.

        Raises:
            LeaseLostError: another process owns the pipeline.
            StateError: the store can't be reached.
            ReaderError: Spanner can't be read: an unchecked epoch may have a new table, which would
                count as complete.
        """
        self._has_looked &= is_unchanged
        if time.monotonic() - self._looked_s < self._every_s or self._has_looked:
            return []
        try:
            now = frozenset(table.name for table in self._tables_at(end_ns))
        except ReaderError as error:
            if time.time_ns() - end_ns < VERSIONS_KEPT_NS:
                raise
            # As long as the versions of that time are gone, nothing can be read at it either.
            _log.debug("can't look for new tables", reason=error.message)
            return []
        self._looked_s = time.monotonic()
        if self._seen is None:
            self._seen = read_seen_tables(self._store, self._pipeline)
        before = self._first(now) if self._seen is None else self._seen
        if now == self._seen:
            self._has_looked = True
            return []
        requests = [
            Rescan(self._pipeline, name, time.time_ns(), NEW_TABLE) for name in sorted(now - before)
        ]
        record_seen_tables(self._store, self._pipeline, now, requests, generation=self._generation)
        self._seen, self._has_looked = now, True
        for request in requests:
            _log.info("the change stream watches a new table", table=request.table)
        return requests

    def _first(self, now: frozenset[str]) -> frozenset[str]:
        """Return the tables that are not new at the first poll.

        They are those of the initial scan, if the pipeline begins with this epoch: the stream may
        have been altered since.
        """
        name = self._pipeline
        scan, pipeline = read_scan(self._store, name), self._store.pipeline(name)
        if scan is None or pipeline is None:
            return now
        has_epochs = (pipeline.low_watermark_ns or 0) > scan[0].at_ns
        return now if has_epochs else frozenset(tables_from_json(scan[0].tables))
