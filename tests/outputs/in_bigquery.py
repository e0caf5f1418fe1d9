"""Outputs in BigQuery, whose commits are on a disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from google.api_core.exceptions import NotFound

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import datetime_to_rfc3339
from tests.outputs.changelog_tables import TableChangelog, with_epochs
from tests.outputs.in_database import TABLES, AtOneTime, DatabaseChangelogs, LookerAtOnce
from tests.outputs.mirror import Mirror
from tests.outputs.output import MakeOutput, Moment, Output, Place, epoch_id, logged_records
from tests.support import mixed_load
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door, bigquery_server
from tests.support.mirror_looks import Looker, Seen
from tests.support.object_stores import ServedStore

_TABLE = f"`{PROJECT}.{DATASET}.changes`"
_MARKS = f"`{PROJECT}.{DATASET}._slackwater`"


class BigQueryChangelog(TableChangelog):
    """Rows that the Storage Write API shows."""

    moments = (("AppendRows", ""), ("FlushRows", ""), ("CreateWriteStream", ""))

    def __init__(self, place: Place, server: BigQueryServer, door: Door) -> None:
        super().__init__(place)
        # Its requests are held back, as those to an object store are.
        self.store = cast("ServedStore", door)
        self._server, self._door = server, door
        self._checkpoint = place.folder / "checkpoint"

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            "format": "bigquery",
            "path": f"bq://{PROJECT}/{DATASET}",
            "checkpoint": str(self._checkpoint),
            "storage_options": self._server.options(self._door),
        }

    def look(self, stream: ChangeStream) -> None:
        """Count the rows of each epoch."""
        del stream
        try:
            counted = self._server.query(
                f"SELECT low_watermark, COUNT(*) AS n FROM {_TABLE} GROUP BY low_watermark"
            )
        except NotFound:
            return
        logged = logged_records(pafs.LocalFileSystem(), f"{self._checkpoint}-log")
        for row in counted:
            epoch = epoch_id(datetime_to_rfc3339(row["low_watermark"]))
            self.note(epoch, row["n"], logged.get(epoch))

    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""
        job = self._server.client.query(f"SELECT * FROM {_TABLE}")
        return with_epochs(job.to_arrow(create_bqstorage_client=False))


class BigQueryChangelogs(DatabaseChangelogs):
    """Typed changelogs, whose views end at one low watermark."""

    moments = BigQueryChangelog.moments

    def __init__(self, place: Place, server: BigQueryServer, door: Door) -> None:
        super().__init__(place)
        self.store = cast("ServedStore", door)
        self._server, self._door = server, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            "kind": "changelogs",
            "format": "bigquery",
            "path": f"bq://{PROJECT}/{DATASET}",
            "checkpoint": str(self._place.folder / "checkpoint"),
            "storage_options": self._server.options(self._door),
        }

    def _counts(self) -> dict[tuple[str, Any], int]:
        return {
            (table, row["epoch"]): row["n"]
            for table in TABLES
            for row in self._query(
                f"SELECT low_watermark AS epoch, COUNT(*) AS n FROM {_id('_cut_' + table)}"
                " GROUP BY low_watermark"
            )
        }

    def _rows(self, table: str) -> list[dict[str, Any]]:
        return self._query(f"SELECT * FROM {_id(table)}")

    def _query(self, query: str) -> list[dict[str, Any]]:
        try:
            return self._server.query(query)
        except NotFound:
            return []


def _id(table: str) -> str:
    return f"`{PROJECT}.{DATASET}.{table}`"


class BigQueryMirror(Mirror):
    """Mirrors that one transaction brings to a low watermark."""

    moments: Sequence[Moment] = (
        ("AppendRows", ""),
        ("FlushRows", ""),
        ("BEGIN TRANSACTION", ""),
        ("CreateWriteStream", ""),
        ("SELECT", ""),
    )

    def __init__(self, place: Place, server: BigQueryServer, door: Door) -> None:
        super().__init__(place)
        self.store = cast("ServedStore", door)
        self._server, self._door = server, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            **super().sink(),
            "format": "bigquery",
            "path": f"bq://{PROJECT}/{DATASET}",
            "checkpoint": str(self._place.folder / "checkpoint"),
            "storage_options": self._server.options(self._door),
        }

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return BigQueryLooker(self._server, stream, self._dialect)


class BigQueryUpserts(BigQueryMirror):
    """Mirrors that are consistent each by itself, of which nothing is known before the end."""

    moments = (("AppendRows", "_default"), ("AppendRows", "_slackwater"), ("FlushRows", ""))

    def statements(self) -> Sequence[str]:
        """Return the database's schema, with changes of whole rows."""
        return mixed_load.ddl(self._dialect, "NEW_ROW")

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {**super().sink(), "consistency": "table", "deletes": "apply"}

    def look(self, stream: ChangeStream) -> None:
        """Do nothing: a mirror may be ahead of its low watermark."""


class BigQueryLooker(LookerAtOnce):
    """Compares mirrors with their tables, all at one low watermark."""

    def __init__(self, server: BigQueryServer, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(stream, dialect)
        self._server = server

    def _at_one_time(self) -> AtOneTime | None:
        before = self._low_watermark()
        try:
            seen = self.if_later(before, lambda name: self._current(name).rows)
        except NotFound:
            # Some have no rows yet.
            return None
        return seen if self._low_watermark() == before else None

    def _low_watermark(self) -> datetime | None:
        try:
            [row] = self._server.query(f"SELECT MAX(low_watermark) AS at FROM {_MARKS}")
        except NotFound:
            return None
        at: datetime | None = row["at"]
        return at

    def _current(self, name: str) -> Seen:
        table = f"`{PROJECT}.{DATASET}.{name.replace('.', '_')}`"
        return Seen(self._server.query(f"SELECT * FROM {table}"), None)

    def _expected(self, name: str, at_ns: int | None) -> list[dict[str, Any]]:
        """Return the rows without what arrays of BigQuery's can't have."""
        rows = super()._expected(name, at_ns)
        arrays = [c for c, kind in mixed_load.COLUMNS[name].items() if kind.startswith("ARRAY")]
        for row in rows:
            row.update({c: [value for value in row[c] or () if value is not None] for c in arrays})
        return rows


def _served(output: Callable[[Place, BigQueryServer, Door], Output]) -> MakeOutput:
    @contextmanager
    def serve(place: Place) -> Iterator[Output]:
        with bigquery_server() as server, server.door() as door:
            yield output(place, server, door)

    return serve


bigquery_changelog = _served(BigQueryChangelog)
bigquery_changelogs = _served(BigQueryChangelogs)
bigquery_mirror = _served(BigQueryMirror)
bigquery_upserts = _served(BigQueryUpserts)
