"""Random transactions over four tables with columns of many types, in both dialects."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.cloud.spanner_v1 import KeySet

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator_database import database_of

CHANGE_STREAM = "MixedStream"
SINGERS, ALBUMS, FLAGS, NOTES = "Singers", "Albums", "Flags", "archive.Notes"
TABLES = (SINGERS, ALBUMS, FLAGS, NOTES)
# The change stream does not watch it.
GENERATED = "Century"
Key = tuple[Any, ...]

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    SINGERS: ("Id",),
    ALBUMS: ("Id", "Title"),
    FLAGS: ("Kind", "Day"),
    NOTES: ("Id",),
}
# The types in GoogleSQL of the columns that the change stream watches, by table.
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    SINGERS: {
        "Id": "INT64",
        "Name": "STRING(MAX)",
        "Born": "DATE",
        "Active": "BOOL",
        "Score": "FLOAT64",
        "Fee": "NUMERIC",
        "Photo": "BYTES(MAX)",
        "Changed": "TIMESTAMP",
        "Extra": "JSON",
        "Counts": "ARRAY<INT64>",
        "Tags": "ARRAY<STRING(MAX)>",
        "Marks": "ARRAY<FLOAT64>",
    },
    ALBUMS: {"Id": "INT64", "Title": "STRING(50)", "Year": "INT64", "Sold": "NUMERIC"},
    FLAGS: {"Day": "DATE", "Kind": "STRING(9)"},
    NOTES: {"Id": "STRING(36)", "Text": "STRING(MAX)", "Size": "INT64"},
}
_POSTGRESQL_TYPES: Final[Mapping[str, str]] = {
    "INT64": "bigint",
    "STRING": "varchar",
    "DATE": "date",
    "BOOL": "boolean",
    "FLOAT64": "float8",
    "NUMERIC": "numeric",
    "BYTES": "bytea",
    "TIMESTAMP": "timestamptz",
    "JSON": "jsonb",
}


def _postgresql_type(kind: str) -> str:
    if kind.startswith("ARRAY<"):
        return f"{_postgresql_type(kind[6:-1])}[]"
    name, _, size = kind.replace("(MAX)", "").partition("(")
    return _POSTGRESQL_TYPES[name] + (size and f"({size}")


def _googlesql() -> list[str]:
    listed = {
        table: ", ".join(
            f"{name} {kind}" + " NOT NULL" * (name == "Id") for name, kind in columns.items()
        )
        for table, columns in COLUMNS.items()
    }
    return [
        "CREATE SCHEMA archive",
        f"CREATE TABLE {SINGERS} ({listed[SINGERS]}) PRIMARY KEY (Id)",
        f"CREATE TABLE {ALBUMS} ({listed[ALBUMS]}, {GENERATED} INT64 AS (DIV(Year, 100)) STORED)"
        f" PRIMARY KEY (Id, Title), INTERLEAVE IN PARENT {SINGERS} ON DELETE CASCADE",
        f"CREATE TABLE {FLAGS} ({listed[FLAGS]}) PRIMARY KEY (Kind, Day DESC)",
        f"CREATE TABLE {NOTES} ({listed[NOTES]}) PRIMARY KEY (Id)",
    ]


def _postgresql() -> list[str]:
    listed = {
        table: ", ".join(f'"{name}" {_postgresql_type(kind)}' for name, kind in columns.items())
        for table, columns in COLUMNS.items()
    }
    return [
        "CREATE SCHEMA archive",
        f'CREATE TABLE "{SINGERS}" ({listed[SINGERS]}, PRIMARY KEY ("Id"))',
        f'CREATE TABLE "{ALBUMS}" ({listed[ALBUMS]},'
        f' "{GENERATED}" bigint GENERATED ALWAYS AS ("Year" / 100) STORED,'
        f' PRIMARY KEY ("Id", "Title")) INTERLEAVE IN PARENT "{SINGERS}" ON DELETE CASCADE',
        f'CREATE TABLE "{FLAGS}" ({listed[FLAGS]}, PRIMARY KEY ("Kind", "Day"))',
        f'CREATE TABLE archive."Notes" ({listed[NOTES]}, PRIMARY KEY ("Id"))',
    ]


def ddl(dialect: Dialect, capture: str) -> list[str]:
    """Return the tables' schema, with a change stream over all of them."""
    if dialect is Dialect.POSTGRESQL:
        made, word, name = _postgresql(), "WITH", f'"{CHANGE_STREAM}"'
    else:
        made, word, name = _googlesql(), "OPTIONS", CHANGE_STREAM
    return [
        *made,
        f"CREATE CHANGE STREAM {name} FOR ALL {word} (value_capture_type = '{capture}')",
    ]


class MixedChanges:
    """Writes random transactions; the same seed gives the same ones.

    Args:
        database: as Google's client has it, of which only batch() is used.
        seed: chooses everything.
    """

    tables: Sequence[str] = TABLES
    keys: Mapping[str, tuple[str, ...]] = KEYS

    def __init__(self, database: Any, *, seed: int) -> None:
        self._database = database
        self._random = random.Random(seed)
        self._rows: dict[str, set[Key]] = {table: set() for table in self.tables}
        self._next = 0
        self.changes = 0

    def transaction(
        self, changed: set[tuple[str, Key]] | None = None, changes_max: int = 4
    ) -> None:
        """Write changes of different rows.

        Args:
            changed: rows that are left alone, to which those that it changes are added.
            changes_max: how many changes it has at most, without those of interleaved rows.
        """
        changed = set() if changed is None else changed
        with self._database.batch() as batch:
            for _ in range(self._random.randint(1, changes_max)):
                table = self._random.choice(self.tables)
                rows = sorted(self._rows[table] - {row for name, row in changed if name == table})
                kind = self._random.random()
                if table == ALBUMS and not self._rows[SINGERS]:
                    continue
                if kind < 0.4 or not rows:
                    key: Key | None = self._insert(batch, table, changed)
                elif kind < 0.8:
                    key = self._update(batch, table, self._random.choice(rows))
                else:
                    key = self._delete(batch, table, self._random.choice(rows), changed)
                if key is not None:
                    changed.add((table, key))
                    self.changes += 1

    def _insert(self, batch: Any, table: str, changed: set[tuple[str, Key]]) -> Key:
        self._next += 1
        key = self._new_key(table, changed)
        values = self._values(table)
        batch.insert(table, (*self.keys[table], *values), [[*key, *values.values()]])
        self._rows[table].add(key)
        return key

    def _new_key(self, table: str, changed: set[tuple[str, Key]]) -> Key:
        """Return the key of a row that is neither there nor among those left alone."""
        if table == ALBUMS:
            singer = self._random.choice(sorted(self._rows[SINGERS]))
            return (*singer, f"Title '{self._next}' \\ é")
        if table == FLAGS:
            return (f"k{self._next}", f"2026-{self._next % 12 + 1:02d}-01")
        return (self._next,) if table == SINGERS else (f"note {self._next}",)

    def _update(self, batch: Any, table: str, key: Key) -> Key | None:
        values = self._values(table)
        if not values:
            return None
        # Only some columns: with some capture types the others are not told.
        chosen = self._random.sample(sorted(values), self._random.randint(1, len(values)))
        row = [*key, *(values[name] for name in chosen)]
        batch.update(table, (*self.keys[table], *chosen), [row])
        return key

    def _delete(
        self, batch: Any, table: str, key: Key, changed: set[tuple[str, Key]]
    ) -> Key | None:
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


class MixedLoad(MixedChanges):
    """Writes them to the database of a change stream."""

    def __init__(self, stream: ChangeStream, dialect: Dialect, *, seed: int) -> None:
        database = database_of(stream, dialect)
        super().__init__(database, seed=seed)

    def execute(self, statement: str) -> None:
        """Change rows by a statement."""
        self._database.run_in_transaction(lambda of_it: of_it.execute_update(statement))
