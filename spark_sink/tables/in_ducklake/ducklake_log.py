"""The epochs of one pipeline in a DuckLake."""

import math
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import RLock
from typing import Any, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from slackwater.spark_sink.errors import DuckLakeError, PublishError
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.tables.by_transaction.names import TableAddress, digest, literal
from slackwater.spark_sink.tables.by_transaction.sql_database import one
from slackwater.spark_sink.tables.by_transaction.transaction_log import (
    CHUNKS,
    MARKS,
    TransactionLog,
)
from slackwater.spark_sink.tables.in_ducklake.address import LakeAddress
from slackwater.spark_sink.tables.in_ducklake.lake import CATALOG, Lake
from slackwater.timestamp import datetime_to_rfc3339

_TABLES: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKS}"
    " (pipeline text, owner text, low_watermark timestamptz, incomplete json)",
    f"CREATE TABLE IF NOT EXISTS {CHUNKS} (pipeline text, low_watermark timestamptz, chunk bigint)",
)
# While a former owner commits, or another pipeline.
_CLAIM_S_MAX: Final = 60
_DAY_S: Final = 86_400
_CLEANED_EVERY_S: Final = 30
MAIN: Final = "main"


class DuckLakeLog(TransactionLog[Lake]):
    """The epochs that one process commits to the tables of a pipeline.

    A commit fails if another one has changed the pipeline's row since the transaction began.

    Args:
        address: where it is.
        place: where the epochs are staged.
        pipeline: its name.
    """

    error = DuckLakeError

    def __init__(self, address: LakeAddress, place: EpochPlace, pipeline: str) -> None:
        reader = Lake(address, f"reading {pipeline}")
        # Former owners' connections are known by the beginning.
        self._writing = f"writing {digest(pipeline)}"
        database = Lake(address, f"{self._writing} {uuid.uuid4().hex}", is_made=True)
        super().__init__(database, reader, place, pipeline)
        self._address = address
        # Of commits and maintenance: of two, the catalog would refuse one.
        self._changing = RLock()
        # An epoch's, from when it waits for that: a lock goes to anybody, the last one, too.
        self._turn = RLock()
        self._cleaned_at = -math.inf

    def _claim(self) -> datetime | None:
        """Make the log's tables, and state this owner; see TransactionLog."""
        retrying = Retrying(
            retry=retry_if_exception_type(PublishError),
            wait=wait_random(0.1, 1),
            stop=stop_after_delay(_CLAIM_S_MAX),
            reraise=True,
        )
        latest: datetime | None = retrying(self._claim_now)
        return latest

    def _claim_now(self) -> datetime | None:
        self._end_former()
        with self.making():
            for statement in _TABLES:
                self.database.run(statement)
            # Two that claimed it for the first time may have left two rows.
            rows = self.database.run(
                f"SELECT low_watermark, incomplete FROM {MARKS} WHERE pipeline = $1"
                " ORDER BY low_watermark DESC NULLS LAST",
                self.pipeline,
            )
            latest, incomplete = rows[0] if rows else (None, None)
            self.database.run(f"DELETE FROM {MARKS} WHERE pipeline = $1", self.pipeline)
            self.database.run(
                f"INSERT INTO {MARKS} VALUES ($1, $2, $3::timestamptz, $4::text::json)",
                *(self.pipeline, self.owner, latest, incomplete),
            )
        claimed: datetime | None = latest
        return claimed

    def _end_former(self) -> None:
        """End a former owner's transaction in PostgreSQL: frozen, it would hold the catalog."""
        if self._address.is_in_postgresql:
            statement = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE starts_with(application_name, {literal(self._writing)})"
                " AND application_name != current_setting('application_name')"
                " AND datname = current_database() AND usename = current_user"
                " AND xact_start IS NOT NULL"
            )
            self.database.run(f"FROM postgres_query({literal(CATALOG)}, {literal(statement)})")

    @contextmanager
    def committing(
        self,
        low_watermark: datetime,
        chunk: int | None,
        *,
        is_stated: bool,
        incomplete: Sequence[str],
    ) -> Iterator[None]:
        """Commit what is written inside, and no maintenance meanwhile; see TransactionLog."""
        made = super().committing(low_watermark, chunk, is_stated=is_stated, incomplete=incomplete)
        with self._turn, self._changing, made:
            yield

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make tables inside; see TransactionLog."""
        with self._turn, self._changing, super().making():
            yield

    def _locked(self) -> datetime | None:
        """Change the pipeline's row, which no other transaction may then; see TransactionLog."""
        latest = super()._locked()
        self.database.run(f"UPDATE {MARKS} SET owner = owner WHERE pipeline = $1", self.pipeline)
        return latest

    def _state(self, low_watermark: datetime, incomplete: Sequence[str]) -> None:
        super()._state(low_watermark, incomplete)
        message = ", ".join(map(literal, (self.pipeline, datetime_to_rfc3339(low_watermark))))
        self.database.run(f"CALL lake.set_commit_message({message})")

    def snapshot_at(self, low_watermark: datetime) -> int | None:
        """Return the id of the snapshot of an epoch; None if it is not there any more."""
        snapshots = self.reader.run(
            "SELECT max(snapshot_id) FROM ducklake_snapshots('lake')"
            " WHERE author = $1 AND commit_message = $2",
            self.pipeline,
            datetime_to_rfc3339(low_watermark),
        )
        snapshot: int | None = one(snapshots)
        return snapshot

    def _comments(self) -> list[str | None]:
        """Return the comments of all tables."""
        rows = self.reader.run("SELECT comment FROM duckdb_tables() WHERE database_name = 'lake'")
        return [comment for (comment,) in rows]

    def comment_of(self, table: TableAddress) -> Sequence[str | None]:
        """Return a table's comment; see TransactionLog."""
        rows = self.reader.run(
            "SELECT comment FROM duckdb_tables() WHERE database_name = 'lake'"
            " AND lower(schema_name) = lower($1) AND lower(table_name) = lower($2)",
            table.schema or MAIN,
            table.name,
        )
        return [comment for (comment,) in rows]

    def maintain(self, table: TableAddress, keep_s: float | None) -> None:
        """Compact a table, and remove versions of the lake that nobody reads any more.

        Args:
            table: the table.
            keep_s: for how many seconds a version can be read; None for ever.

        Raises:
            DuckLakeError, PublishError: see SqlDatabase.run().
        """
        self._compact(table)
        now = time.monotonic()
        # Of all tables that are maintained one after the other, with the first.
        if now - self._cleaned_at >= _CLEANED_EVERY_S:
            self._cleaned_at = now
            self._clean(keep_s)

    def _compact(self, table: TableAddress) -> None:
        schema, name = literal(table.schema or MAIN), literal(table.name)
        self._call(
            f"ducklake_flush_inlined_data('lake', schema_name => {schema}, table_name => {name})"
        )
        self._call(f"ducklake_rewrite_data_files('lake', {name}, schema => {schema})")
        files = one(
            self.reader.run(
                f"SELECT count(*) FROM ducklake_list_files('lake', {name}, schema => {schema})"
            )
        )
        merge = f"'lake', {name}, schema => {schema}, max_compacted_files => 1"
        # One file after the other, for epochs to come between; without the files that they add.
        while files > 0 and (merged := self._call(f"ducklake_merge_adjacent_files({merge})")):
            files -= sum(processed for _, _, processed, _ in merged)

    def _clean(self, keep_s: float | None) -> None:
        """Remove what no version needs that can be read; see maintain()."""
        self._compact(TableAddress(None, MARKS))
        if keep_s is not None:
            # DuckLake compares times in SQLite as texts of two kinds, which are right by days.
            since = f"now() - INTERVAL '{keep_s} seconds'"
            snapshots = self.database.run(
                f"SELECT snapshot_id, snapshot_time < {since} FROM ducklake_snapshots('lake')"
                " ORDER BY snapshot_id"
            )
            if old := [number for number, is_old in snapshots[:-1] if is_old]:
                self._call(f"ducklake_expire_snapshots('lake', versions => {old})")
            before = f"date_trunc('day', {since}) - INTERVAL '1 microsecond'"
            self._remove(f"ducklake_cleanup_old_files('lake', older_than => {before})")
        # Of processes that were killed, and of commits that failed.
        before = f"older_than => now() - INTERVAL '{_DAY_S} seconds'"
        self._remove(f"ducklake_delete_orphaned_files('lake', {before})")
        self.database.remove_left_uploads(_DAY_S)

    def _call(self, function: str) -> list[tuple[Any, ...]]:
        with self._after_epochs():
            return self.database.run(f"CALL {function}")

    def _remove(self, function: str) -> None:
        with self._after_epochs():
            self.database.removing(f"CALL {function}")

    @contextmanager
    def _after_epochs(self) -> Iterator[None]:
        """Keep commits away inside, once those that wait are done."""
        with self._turn:
            pass
        with self._changing:
            yield

    def check(self) -> None:
        """Ask whether the catalog can be made; see Lake.check()."""
        self.reader.check()
