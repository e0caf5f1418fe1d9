"""Random transactions over four tables with columns of many types, in both dialects."""

from __future__ import annotations

import random
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseDialect
from google.cloud.spanner_v1 import KeySet

from slackwater.reader.change_stream import ChangeStream, Dialect

CHANGE_STREAM = "MixedStream"
SINGERS, ALBUMS, FLAGS, NOTES = "Singers", "Albums", "Flags", "archive.Notes"
TABLES = (SINGERS, ALBUMS, FLAGS, NOTES)
# The change stream does not watch it.
GENERATED = "Century"

_GOOGLESQL = (
    "CREATE SCHEMA archive",
    f"CREATE TABLE {SINGERS} (Id INT64 NOT NULL, Name STRING(MAX), Born DATE, Active BOOL,"
    " Score FLOAT64, Fee NUMERIC, Photo BYTES(MAX), Changed TIMESTAMP, Extra JSON,"
    " Counts ARRAY<INT64>, Tags ARRAY<STRING(MAX)>, Marks ARRAY<FLOAT64>) PRIMARY KEY (Id)",
    f"CREATE TABLE {ALBUMS} (Id INT64 NOT NULL, Title STRING(50), Year INT64, Sold NUMERIC,"
    " Century INT64 AS (DIV(Year, 100)) STORED)"
    f" PRIMARY KEY (Id, Title), INTERLEAVE IN PARENT {SINGERS} ON DELETE CASCADE",
    f"CREATE TABLE {FLAGS} (Day DATE, Kind STRING(9)) PRIMARY KEY (Kind, Day DESC)",
    f"CREATE TABLE {NOTES} (Id STRING(36) NOT NULL, Text STRING(MAX), Size INT64) PRIMARY KEY (Id)",
)
_POSTGRESQL = (
    "CREATE SCHEMA archive",
    f'CREATE TABLE "{SINGERS}" ("Id" bigint PRIMARY KEY, "Name" varchar, "Born" date,'
    ' "Active" boolean, "Score" float8, "Fee" numeric, "Photo" bytea, "Changed" timestamptz,'
    ' "Extra" jsonb, "Counts" bigint[], "Tags" varchar[], "Marks" float8[])',
    f'CREATE TABLE "{ALBUMS}" ("Id" bigint, "Title" varchar(50), "Year" bigint, "Sold" numeric,'
    ' "Century" bigint GENERATED ALWAYS AS ("Year" / 100) STORED,'
    f' PRIMARY KEY ("Id", "Title")) INTERLEAVE IN PARENT "{SINGERS}" ON DELETE CASCADE',
    f'CREATE TABLE "{FLAGS}" ("Day" date, "Kind" varchar(9), PRIMARY KEY ("Kind", "Day"))',
    'CREATE TABLE archive."Notes" ("Id" varchar(36) PRIMARY KEY, "Text" varchar, "Size" bigint)',
)


def ddl(dialect: Dialect, capture: str) -> list[str]:
    """Return the tables' schema, with a change stream over all of them."""
    if dialect is Dialect.POSTGRESQL:
        made, word, name = _POSTGRESQL, "WITH", f'"{CHANGE_STREAM}"'
    else:
        made, word, name = _GOOGLESQL, "OPTIONS", CHANGE_STREAM
    return [
        *made,
        f"CREATE CHANGE STREAM {name} FOR ALL {word} (value_capture_type = '{capture}')",
    ]


class MixedLoad:
    """Writes random transactions; the same seed gives the same ones."""

    def __init__(self, stream: ChangeStream, dialect: Dialect, *, seed: int) -> None:
        client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
        self._database = client.instance(stream.instance).database(
            stream.database, database_dialect=getattr(DatabaseDialect, str(dialect))
        )
        self._random = random.Random(seed)
        self._rows: dict[str, set[tuple[Any, ...]]] = {table: set() for table in TABLES}
        self._next = 0
        self.changes = 0

    def transaction(self) -> None:
        """Write one to four changes of different rows."""
        changed: set[Any] = set()
        with self._database.batch() as batch:
            for _ in range(self._random.randint(1, 4)):
                table = self._random.choice(TABLES)
                rows = sorted(self._rows[table] - {row for name, row in changed if name == table})
                kind = self._random.random()
                if table == ALBUMS and not self._rows[SINGERS]:
                    continue
                if kind < 0.4 or not rows:
                    key: tuple[Any, ...] | None = self._insert(batch, table)
                elif kind < 0.8:
                    key = self._update(batch, table, self._random.choice(rows))
                else:
                    key = self._delete(batch, table, self._random.choice(rows), changed)
                if key is not None:
                    changed.add((table, key))
                    self.changes += 1

    def _insert(self, batch: Any, table: str) -> tuple[Any, ...]:
        self._next += 1
        if table == ALBUMS:
            singer = self._random.choice(sorted(self._rows[SINGERS]))
            key: tuple[Any, ...] = (*singer, f"Title '{self._next}' \\ é")
        elif table == FLAGS:
            key = (f"k{self._next}", f"2026-{self._next % 12 + 1:02d}-01")
        else:
            key = (self._next,) if table == SINGERS else (f"note {self._next}",)
        values = self._values(table)
        batch.insert(table, (*_KEYS[table], *values), [[*key, *values.values()]])
        self._rows[table].add(key)
        return key

    def _update(self, batch: Any, table: str, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        values = self._values(table)
        if not values:
            return None
        # Only some columns: with some capture types the others are not told.
        chosen = self._random.sample(sorted(values), self._random.randint(1, len(values)))
        row = [*key, *(values[name] for name in chosen)]
        batch.update(table, (*_KEYS[table], *chosen), [row])
        return key

    def _delete(
        self, batch: Any, table: str, key: tuple[Any, ...], changed: set[Any]
    ) -> tuple[Any, ...] | None:
        albums = {row for row in self._rows[ALBUMS] if table == SINGERS and row[0] == key[0]}
        if any((ALBUMS, row) in changed for row in albums):
            return None
        # The interleaved albums go with their singer.
        self._rows[ALBUMS] -= albums
        changed.update((ALBUMS, row) for row in albums)
        batch.delete(table, KeySet(keys=[list(key)]))
        self._rows[table].discard(key)
        return key

    def _values(self, table: str) -> dict[str, Any]:
        pick = self._random.choice
        number = self._random.randint(-(10**6), 10**6)
        if table == SINGERS:
            return {
                "Name": pick([None, "", f"singer {number} é \"'\\ \n", "NULL"]),
                "Born": pick([None, "0001-01-01", "1970-01-01", "9999-12-31"]),
                "Active": pick([None, True, False]),
                # The emulator's records have NULL for infinities.
                "Score": pick([None, number / 7, 1e300, -0.5]),
                "Fee": pick([None, f"{number}.25", "99999999999999999999999999999.999999999"]),
                "Photo": pick([None, b"", b"cGFpZA=="]),
                "Changed": pick([None, "1000-01-01T00:00:00Z", "2026-01-31T09:00:00Z"]),
                "Extra": pick([None, f'{{"n": {number}, "x": [1.5, null, {{"y": "é"}}]}}', "[]"]),
                "Counts": pick([None, [], [number, 2**63 - 1, -(2**63)]]),
                "Tags": pick([None, [], ["", "a,b", '"c"', "é"]]),
                "Marks": pick([None, [], [0.5, number / 3]]),
            }
        if table == ALBUMS:
            return {"Year": pick([None, number]), "Sold": pick([None, f"{number}"])}
        if table == NOTES:
            return {"Text": pick([None, "note " * (number % 9)]), "Size": number}
        return {}


_KEYS = {SINGERS: ("Id",), ALBUMS: ("Id", "Title"), FLAGS: ("Kind", "Day"), NOTES: ("Id",)}
