"""The changes of a synthetic database: random transactions, and their records in each partition."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import ColumnType, DataChangeRecord, Mod
from slackwater.state.models import PartitionKey
from tests.simulation.mutable_history import KEY_RANGES
from tests.support.mixed_load import ALBUMS, COLUMNS, KEYS, SINGERS, TABLES, Key, MixedChanges

CAPTURES: Final = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
# The columns that the emulator does not have, or has without these values, as JSON has them.
TYPES: Final = "Types"
_TYPES: Final[Mapping[str, tuple[str, Sequence[Any]]]] = {
    "Id": ("UUID", ()),
    "Real": ("FLOAT32", (0.5, "NaN", "-Infinity")),
    "Span": ("INTERVAL", ("P1Y2M3DT4H5M6.5S", "P0Y")),
    "Days": ("ARRAY<DATE>", ([], ["0001-01-01", None, "9999-12-31"])),
    "Times": ("ARRAY<TIMESTAMP>", (["2026-01-31T09:00:00.123456789Z", None],)),
    "Blobs": ("ARRAY<BYTES(MAX)>", (["AAH/", "", None],)),
    "Bits": ("ARRAY<BOOL>", ([True, False, None],)),
    "Reals": ("ARRAY<FLOAT32>", ([0.5, None], ["NaN", "Infinity"])),
    "Texts": ("ARRAY<JSON>", (['{"a": 1}', "[]", None],)),
    "Sums": ("ARRAY<NUMERIC>", (["-0.000000001", None, "99999999999999999999999999999"],)),
    "Others": ("ARRAY<UUID>", (["00000000-0000-4000-8000-00000000000a"],)),
}
_BEYOND_THE_EMULATOR: Final[Mapping[str, Sequence[Any]]] = {
    "Score": ("NaN", "Infinity", "-Infinity"),
    "Changed": ("2026-01-31T09:00:00.123456789Z", "0001-01-01T00:00:00.000001Z"),
    "Marks": (["NaN", None, "-Infinity"],),
    "Counts": ([None, 0],),
    "Text": ("\0\x1f\x7f\u2028 \U0001f600",),
}
WATCHED: Final[Mapping[str, Mapping[str, str]]] = {
    **COLUMNS,
    TYPES: {name: kind for name, (kind, _) in _TYPES.items()},
}
PRIMARY_KEYS: Final[Mapping[str, tuple[str, ...]]] = {**KEYS, TYPES: ("Id",)}
_MODS_MAX: Final = 3
_TAGS: Final = ("", "app=shop", "é 'tag'")
Row = dict[str, Any]


class Change(NamedTuple):
    """What a transaction did to a row.

    Attributes:
        table: its table.
        key: the values of its key, in the order of the primary key.
        before, after: its values; None where it is not there.
        names: the columns that were written.
    """

    table: str
    key: Key
    before: Row | None
    after: Row | None
    names: tuple[str, ...]

    @property
    def mod_type(self) -> str:
        """INSERT, UPDATE or DELETE."""
        if self.before is None:
            return "INSERT"
        return "DELETE" if self.after is None else "UPDATE"

    @property
    def key_range(self) -> int:
        """The number of the key range in which it lies: an album is with its singer."""
        return crc32(repr(self.key[0]).encode()) % KEY_RANGES


class Database:
    """What random transactions are written to, as Google's client has it.

    Attributes:
        rows: those of each table by key, with their values as a change record has them.
        changes: those of the last transaction.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Row]] = {table: {} for table in WATCHED}
        self.changes: list[Change] = []

    @contextmanager
    def batch(self) -> "Iterator[Database]":
        """Return what takes the changes of a transaction."""
        self.changes = []
        yield self

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write columns of rows, which are inserted if they are not there."""
        size = len(PRIMARY_KEYS[table])
        for row in rows:
            key, names = tuple(row[:size]), tuple(columns[size:])
            before = self.rows[table].get(key)
            values = dict(zip(names, map(_json_value, row[size:]), strict=True))
            self.rows[table][key] = after = {**(before or {}), **values}
            self.changes.append(Change(table, key, before, after, names))

    update = insert

    def delete(self, table: str, keyset: Any) -> None:
        """Delete rows, and those that are interleaved in them."""
        for listed in keyset.keys:
            key = tuple(listed)
            albums = self.rows[ALBUMS] if table == SINGERS else {}
            for album in [album for album in albums if album[0] == key[0]]:
                self.changes.append(Change(ALBUMS, album, albums.pop(album), None, ()))
            self.changes.append(Change(table, key, self.rows[table].pop(key), None, ()))

    def remaining(self) -> dict[str, list[Row]]:
        """Return the rows of each table, with all columns."""
        return {
            table: [{**_key_values(table, key), **values} for key, values in rows.items()]
            for table, rows in self.rows.items()
        }


class Changes(MixedChanges):
    """Those of the emulator's load, with values and columns that the emulator does not have.

    Of one table, rows that were deleted are inserted again.
    """

    tables = (*TABLES, TYPES)
    keys = PRIMARY_KEYS

    def _new_key(self, table: str, changed: set[tuple[str, Key]]) -> Key:
        if table != TYPES:
            return super()._new_key(table, changed)
        keys = [(f"00000000-0000-4000-8000-{number:012x}",) for number in range(self._next)]
        taken = self._rows[TYPES] | {key for name, key in changed if name == TYPES}
        return self._random.choice([key for key in keys if key not in taken])

    def _values(self, table: str) -> Row:
        if table == TYPES:
            some = {name: (None, *values) for name, (_, values) in _TYPES.items() if values}
            return {name: self._random.choice(values) for name, values in some.items()}
        row = super()._values(table)
        for name, values in _BEYOND_THE_EMULATOR.items():
            if name in row and self._random.random() < 0.3:
                row[name] = self._random.choice(values)
        return row


def records_of_transaction(
    number: int,
    commit_timestamp_ns: int,
    changes: Sequence[Change],
    capture: str,
    dialect: Dialect,
    owners: Mapping[int, PartitionKey],
) -> list[tuple[PartitionKey, DataChangeRecord]]:
    """Return a transaction's records, each with the partition in which it lies, in their order.

    Args:
        number: of the transaction.
        commit_timestamp_ns: when it was committed, nanoseconds.
        changes: what it did.
        capture: the change stream's value capture type.
        dialect: the database's.
        owners: the partition of each key range.
    """
    choose = random.Random(number)
    alike: dict[Any, list[Change]] = {}
    for change in changes:
        names = _names(change, capture)
        place = (owners[change.key_range], change.table, change.mod_type, names)
        alike.setdefault(place, []).append(change)
    parts = [
        (place, mods[first : first + _MODS_MAX])
        for place, mods in alike.items()
        for first in range(0, len(mods), _MODS_MAX)
    ]
    partitions = {place[0]: at for at, (place, _) in enumerate(parts)}
    tag = choose.choice(_TAGS)
    # As a time to live deletes rows.
    is_system = not tag and all(change.after is None for change in changes)
    return [
        (
            partition,
            DataChangeRecord(
                commit_timestamp_ns,
                f"{number:020}",
                f"{number:016x}-{at:08x}",
                partitions[partition] == at,
                table,
                _column_types(table, dialect, names[0] + names[1]),
                tuple(_mod(change, *names) for change in mods),
                mod_type,
                capture,
                len(parts),
                len(partitions),
                tag,
                is_system,
            ),
        )
        for at, ((partition, table, mod_type, names), mods) in enumerate(parts)
    ]


def _names(change: Change, capture: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns whose new values and whose old values a record has."""
    everything = tuple(n for n in WATCHED[change.table] if n not in PRIMARY_KEYS[change.table])
    is_update = change.mod_type == "UPDATE"
    new = change.names if is_update and not capture.startswith("NEW_ROW") else everything
    old = change.names if is_update else everything
    has_old = "OLD" in capture and change.before is not None
    return new if change.after is not None else (), old if has_old else ()


def _mod(change: Change, new: Sequence[str], old: Sequence[str]) -> Mod:
    return Mod(
        _text(_key_values(change.table, change.key)),
        _text({name: (change.after or {})[name] for name in new}),
        _text({name: (change.before or {})[name] for name in old}),
    )


def _key_values(table: str, key: Key) -> Row:
    return dict(zip(PRIMARY_KEYS[table], map(_json_value, key), strict=True))


def _text(members: Row) -> str:
    """As Spanner writes the JSON type: members by name, no spaces."""
    return orjson.dumps(members, option=orjson.OPT_SORT_KEYS).decode()


def _json_value(value: Any) -> Any:
    """Return a value of Google's client as a change record has it."""
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else value


@cache
def _column_types(table: str, dialect: Dialect, names: tuple[str, ...]) -> tuple[ColumnType, ...]:
    return tuple(
        ColumnType(name, _text(_type(kind, dialect)), name in PRIMARY_KEYS[table], position)
        for position, (name, kind) in enumerate(WATCHED[table].items(), 1)
        # A record with neither old nor new values names all columns: it is a DELETE.
        if name in (*PRIMARY_KEYS[table], *names) or not names
    )


def _type(kind: str, dialect: Dialect) -> Row:
    if kind.startswith("ARRAY<"):
        return {"code": "ARRAY", "array_element_type": _type(kind[6:-1], dialect)}
    code = kind.partition("(")[0]
    annotation = {"NUMERIC": "PG_NUMERIC", "JSON": "PG_JSONB"}.get(code)
    if annotation is None or dialect is not Dialect.POSTGRESQL:
        return {"code": code}
    return {"code": code, "type_annotation": annotation}
