"""The comparison of mirrors slice by slice, in rounds: `slackwater verify --continuous`.

A slice is a range of keys. Its rows are read from Spanner as of the low watermark that the mirror
states, and the mirror at the version that states it, so that the pipeline may go on meanwhile.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from slackwater.commands.chosen_tables import chosen_of
from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.commands.verify import MirrorSource, mirror_source
from slackwater.config.settings import Settings
from slackwater.pipeline.failures import delay_s, diagnose
from slackwater.pipeline.signals import termination_signals
from slackwater.pipeline.table_chunk import chunk_of, key_from_json, key_to_json
from slackwater.printing import show
from slackwater.reader.database.key_range_read import ReadLimits, read_key_range
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.errors import ReaderError
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.dead_letters import spark_errors
from slackwater.spark_sink.sql.columns import mirror_columns
from slackwater.spark_sink.tables.rescans.chunk_comparison import ChunkComparison, compare_chunk
from slackwater.spark_sink.tables.row_merges.row_changes import IS_DELETED
from slackwater.state.errors import StateError
from slackwater.state.rescan_models import REPAIR, Rescan, RescanState
from slackwater.state.rescans import request_rescans, rescans
from slackwater.state.store import Store
from slackwater.state.verified_models import VerifiedTable
from slackwater.state.verified_tables import forget_all_but, record_verified, verified_tables
from slackwater.timestamp import format_rfc3339

_log = structlog.get_logger("slackwater.commands.continuous_verification")

_SLICE: Final = ReadLimits(rows=16_000, size=8 << 20, seconds=10.0)
_COMMIT_POLL_S: Final = 0.2
_EXAMPLES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Slice:
    """The result for one slice.

    Attributes:
        last_key: JSON of the key at which it ends; None for the table's end.
        records: the number of rows of the table in it.
        different: the number of rows that differ, or are on one side only.
        can_be_repaired: a rescan would correct some of them.
        keys: JSON of some of their keys.
        at_ns: the low watermark at which it was compared.
    """

    last_key: str | None
    records: int
    different: int
    can_be_repaired: bool
    keys: tuple[str, ...]
    at_ns: int

    def added_to(self, verified: VerifiedTable) -> VerifiedTable:
        """Return the table's round after it."""
        return verified.after_slice(self.last_key, self.records, self.different, self.at_ns)

    def findings(self, before: VerifiedTable) -> "Iterator[Finding]":
        """Yield the findings after it.

        Args:
            before: the table's round before it.
        """
        at = format_rfc3339(self.at_ns)
        if self.different:
            yield Finding(before.table, at, False, self.records, self.different, self.keys)
        if self.last_key is None:
            at_ns = self.at_ns if before.round_at_ns is None else before.round_at_ns
            yield Finding(
                before.table,
                format_rfc3339(min(at_ns, self.at_ns)),
                True,
                before.records + self.records,
                before.different + self.different,
            )


def slice_of(
    last_key: str | None, records: int, compared: ChunkComparison, key: Sequence[str], at_ns: int
) -> Slice:
    """Return the result for one slice.

    Args:
        last_key, records, at_ns: see Slice.
        compared: the comparison with its mirror.
        key: the names of the key's columns.
    """
    wrong = compared.wrong.slice(0, _EXAMPLES_MAX).select([*key, IS_DELETED]).to_pylist()
    kinds = ("missing or different", "unexpected")
    keys = (f"{kinds[row.pop(IS_DELETED)]} {json.dumps(row, default=str)}" for row in wrong)
    # A value that no column of the mirror can hold was never proved equal.
    different = compared.wrong.num_rows + compared.unconverted
    can_be_repaired = compared.wrong.num_rows > 0
    return Slice(last_key, records, different, can_be_repaired, tuple(keys), at_ns)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding after a slice: rows differ, or the round over the table is complete.

    Attributes:
        table: the table's full name.
        at: the low watermark of the slice, or the earliest of the round's slices.
        is_round: True if a round is complete.
        records: the number of rows of the table in the slice, or in the round.
        different: the number of them that differ.
        keys: JSON of some of the slice's keys that differ.
    """

    table: str
    at: str
    is_round: bool
    records: int
    different: int
    keys: tuple[str, ...] = ()

    def json_fields(self) -> dict[str, Any]:
        """Return it as JSON fields."""
        return asdict(self)

    def text(self) -> str:
        """Return it for people, in one line or more."""
        rows = f"{self.table}: {self.records} rows"
        if not self.different:
            return f"equal     {rows} at {self.at} or later"
        what = "a round over" if self.is_round else "a slice of"
        lines = [f"different {rows} in {what} the table, {self.different} differ, at {self.at}"]
        return "\n".join([*lines, *(f"          {key}" for key in self.keys)])


def verify_continuously(
    settings: Settings, names: Sequence[str], *, repair: bool, every_s: float
) -> Iterator[Finding]:
    """Compare mirrors until a signal ends it; note the results in the metadata store.

    Args:
        settings: the pipeline's.
        names: globs of full table names; without any, all tables that the pipeline reads.
        repair: request a rescan of each table whose mirror differs.
        every_s: the least seconds from the beginning of one round to that of the next.

    Raises:
        SettingsError: the pipeline does not write mirrors, or has not started yet.
        NoTableError: the change stream watches no table with such a name.
        ReaderError, StateError: Spanner or the store can't be reached at the start.
    """
    with (
        open_pipeline(settings) as (store, _),
        termination_signals() as stopped,
        mirror_source(settings, names) as source,
    ):
        stopped.listen()
        verification = ContinuousVerification(
            source, settings, store, stopped, names, repair=repair
        )
        while not stopped.is_set():
            begun_s = time.monotonic()
            yield from verification.round()
            stopped.wait(max(0.0, begun_s + every_s - time.monotonic()))


def print_findings(
    settings: Settings, names: Sequence[str], *, as_json: bool, repair: bool, every_s: float
) -> None:
    """Print the findings of verify_continuously(), which explains the arguments."""
    for finding in verify_continuously(settings, names, repair=repair, every_s=every_s):
        show(json.dumps(finding.json_fields()) if as_json else finding.text(), at_once=True)


class ContinuousVerification:
    """The rounds of one process.

    Args:
        source: both sides of the comparison.
        settings: the pipeline's.
        store: the metadata store.
        stopped: set when no more slice shall begin.
        names: globs of full table names; none for all tables that the pipeline reads.
        repair: request a rescan of each table whose mirror differs.
    """

    def __init__(
        self,
        source: MirrorSource,
        settings: Settings,
        store: Store,
        stopped: threading.Event,
        names: Sequence[str],
        *,
        repair: bool,
    ) -> None:
        self._source = source
        self._settings = settings
        self._store = store
        self._stopped = stopped
        self._names = names
        self._repairs = repair
        self._failures = 0
        self._errors = (ReaderError, SinkError, StateError, *spark_errors())

    def round(self) -> Iterator[Finding]:
        """Compare each table from its last key to its end; failures are logged."""
        try:
            tables = self._tables()
        except self._errors as error:
            self._wait_after(error)
            return
        for verified in tables:
            yield from self._round_over(verified)

    def _tables(self) -> list[VerifiedTable]:
        """Return the tables to compare; the store has all of the pipeline's from now on."""
        source = self._source.handle
        watched = watched_tables(source.connection, source.description.dialect)
        read, chosen = (chosen_of(watched, self._settings, globs) for globs in ((), self._names))
        pipeline = self._settings.pipeline
        forget_all_but(self._store, pipeline, [table.name for table in read])
        by_name = {one.table: one for one in verified_tables(self._store, pipeline)}
        # Also those that are not chosen: all mirrors are equal only when they are.
        for table in read:
            if table.name not in by_name:
                by_name[table.name] = VerifiedTable(pipeline, table.name)
                record_verified(self._store, by_name[table.name])
        return [by_name[table.name] for table in chosen]

    def _round_over(self, verified: VerifiedTable) -> Iterator[Finding]:
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            try:
                slice_ = self._slice(verified)
                if slice_ is None:
                    return
                after = slice_.added_to(verified)
                record_verified(self._store, after)
                if slice_.can_be_repaired and self._repairs:
                    self._repair(verified.table)
            except self._errors as error:
                if self._wait_after(error):
                    verified = verified.again()
                continue
            self._failures = 0
            yield from slice_.findings(verified)
            if after.after_key is None:
                return
            verified = after
            # It takes half of a core at most.
            self._stopped.wait(time.monotonic() - begun_s)

    def _slice(self, verified: VerifiedTable) -> Slice | None:
        """Compare the next slice; return None if there is no mirror, or it states no time yet."""
        stated = self._source.mirror(verified.table)
        if stated is None:
            return None
        rows, at_ns = stated
        table = self._source.table(verified.table, at_ns)
        if table is None:
            return None
        after = key_from_json(verified.after_key)
        read = read_key_range(self._source.handle.connection, table, after, at_ns, _SLICE)
        chunk = chunk_of(table, after, read, at_ns)
        compared = compare_chunk(
            rows,
            chunk,
            mirror_columns(chunk.columns),
            has_nulls_in_arrays=self._source.tables.has_nulls_in_arrays,
        )
        self._wait_for_commit(at_ns)
        return slice_of(key_to_json(read.last_key), len(read.rows), compared, table.key, at_ns)

    def _wait_for_commit(self, at_ns: int) -> None:
        """Wait until the pipeline's own low watermark is that of its mirror.

        A comparison at a later one does not count; see proof().
        """
        while not self._stopped.is_set():
            pipeline = self._store.pipeline(self._settings.pipeline)
            if pipeline is None or (pipeline.low_watermark_ns or 0) >= at_ns:
                return
            self._stopped.wait(_COMMIT_POLL_S)

    def _repair(self, table: str) -> None:
        running = rescans(self._store, self._settings.pipeline, [RescanState.RUNNING])
        if all(rescan.table != table for rescan in running):
            request = Rescan(self._settings.pipeline, table, time.time_ns(), REPAIR)
            request_rescans(self._store, [request])
            _log.warning("requested a rescan", pipeline=self._settings.pipeline, table=table)

    def _wait_after(self, error: Exception) -> bool:
        """Log a failure and wait; return whether it would fail again in the same way."""
        self._failures += 1
        failure, seconds = diagnose(error), delay_s(self._failures)
        _log.warning(
            "can't compare, will try again",
            pipeline=self._settings.pipeline,
            seconds=seconds,
            error=failure.text,
        )
        self._stopped.wait(seconds)
        return failure.user_error
