"""Every type of value and of key, by every value capture type, in mirrors and typed changelogs.

What is written is read back by libraries that are not ours, and compared with a model in Python.
"""

import json
import math
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.tables.in_postgresql.database import Database
from tests.outputs.in_postgresql import with_parts
from tests.support.bigquery import PROJECT, BigQueryServer, Door, bigquery_server
from tests.support.database_places import nested
from tests.support.ducklakes import Lake
from tests.support.epoch_rows import START, Record, frame, low_watermark, make_sink
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server
from tests.support.postgres import rows_in as in_database
from tests.support.read_tables import rows_in
from tests.support.typed_values import VALUES

CAPTURES: Final = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
NANOSECONDS: Final = "_Moment_nanoseconds"
# By column of the key, not in alphabetical order: its type, and JSON values, each with what typed
# columns hold.
KEY: Final[Mapping[str, tuple[str, list[tuple[Any, Any]]]]] = {
    "Zone": ("STRING(MAX)", [("a'\\", "a'\\"), ("", ""), (None, None)]),
    "Moment": (
        "TIMESTAMP",
        [
            ("900-01-01T00:00:00Z", datetime(900, 1, 1, tzinfo=UTC)),
            ("2026-01-31T09:00:00.000000001Z", START),
            ("2026-01-31T09:00:00.000000002Z", START),
        ],
    ),
    "Alpha": ("FLOAT64", [(1e22, 1e22), ("NaN", math.nan), (None, None)]),
    "Day": ("DATE", [("0001-01-01", date(1, 1, 1)), ("9999-12-31", date(9999, 12, 31))]),
    "Bytes": ("BYTES(9)", [("AAH/", b"\0\x01\xff"), ("", b"")]),
    "Flag": ("BOOL", [(True, True), (False, False)]),
    "Sum": ("NUMERIC", [("-0.000000001", Decimal("-0.000000001"))]),
    "Id": ("INT64", [("-9223372036854775808", -(2**63)), ("7", 7)]),
}
COLUMNS: Final = {f"c{place}": kind for place, (kind, _, _) in enumerate(VALUES)}
SAID: Final[dict[str, Any]] = {f"c{place}": said for place, (_, said, _) in enumerate(VALUES)}
TYPED: Final[dict[str, Any]] = {f"c{place}": typed for place, (_, _, typed) in enumerate(VALUES)}
Key = tuple[tuple[Any, Any], ...]


@dataclass
class Table:
    """A table whose changes have one value capture type, and what its rows are.

    Attributes:
        capture: the value capture type.
        rows: the names of the columns that are not NULL, by the key.
        changes: of an epoch, each as its record, and the typed row after it; None for none.
    """

    capture: str
    choose: random.Random
    rows: dict[Key, set[str]] = field(default_factory=dict)
    changes: list[tuple[Record, dict[str, Any] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # So few that rows are updated, deleted and inserted again.
        self.keys = [
            tuple(self.choose.choice(values) for _, values in KEY.values()) for _ in range(6)
        ]

    def change(self, at: int) -> None:
        """Insert, update or delete a row."""
        key = self.choose.choice(self.keys)
        names = {name for name in SAID if self.choose.random() < 0.5}
        before = self.rows.pop(key, None)
        if before is None:
            self.rows[key] = names
            self._add(at, "INSERT", key, {name: self._said(name, names) for name in SAID}, {})
        elif self.choose.random() < 0.3:
            old = {name: self._said(name, before) for name in SAID}
            self._add(at, "DELETE", key, {}, old if "OLD" in self.capture else {})
        else:
            changed = before ^ names
            is_whole = self.capture.startswith("NEW_ROW")
            new = {name: self._said(name, names) for name in (SAID if is_whole else changed)}
            old = {name: self._said(name, before) for name in changed}
            self.rows[key] = names
            self._add(at, "UPDATE", key, new, old if "OLD" in self.capture else {})

    def typed_rows(self) -> list[dict[str, Any]]:
        """Return the rows as a mirror has them."""
        return list(map(self._typed, self.rows))

    def _typed(self, key: Key) -> dict[str, Any]:
        typed = dict(zip(KEY, (value for _, value in key), strict=True))
        at = dict(zip(KEY, (said for said, _ in key), strict=True))["Moment"]
        nanoseconds = int(at[-2]) if "." in at else 0
        values = {name: TYPED[name] if name in self.rows[key] else None for name in SAID}
        return typed | {NANOSECONDS: nanoseconds} | values

    @staticmethod
    def _said(name: str, names: set[str]) -> Any:
        return SAID[name] if name in names else None

    def _add(
        self, at: int, mod_type: str, key: Key, new: Mapping[str, Any], old: Mapping[str, Any]
    ) -> None:
        named = list(zip(KEY, (said for said, _ in key), strict=True))
        kinds = {name: kind for name, (kind, _) in KEY.items()} | COLUMNS
        types = [
            (name, kind, name in KEY, place) for place, (name, kind) in enumerate(kinds.items(), 1)
        ]
        texts = tuple(json.dumps(values) for values in (dict(sorted(named)), new, old))
        record = (
            *(START + timedelta(microseconds=at), f"t{at}", "00000000", True, f"T{self.capture}"),
            *(types, [texts], mod_type, self.capture, 1, 1, "", False, "p", START),
        )
        typed = self._typed(key) if key in self.rows else None
        self.changes.append((record, typed))


def plain(row: Mapping[str, Any]) -> str:
    """Return a text that is the same for rows of equal values."""
    return repr([(name, _plain_value(row[name])) for name in sorted(row)])


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_plain_value, value))
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


class Written(ABC):
    """Mirrors and typed changelogs of one format, as a pipeline writes them.

    Attributes:
        mirrors, typed: their sinks.
    """

    mirrors: Sink
    typed: Sink

    @abstractmethod
    def rows(self, sink: Sink, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table as another library reads them."""

    def held(self, row: Mapping[str, Any]) -> str:
        """Return a text of a model's row; see plain()."""
        return plain(row)


class InFolders(Written):
    def __init__(self, folder: Path, using: str) -> None:
        self._folders: dict[Sink, Path] = {}
        self.mirrors = self._sink(folder / "mirrors", "mirror", using)
        self.typed = self._sink(folder / "typed", "changelogs", using)

    def _sink(self, folder: Path, kind: str, using: str) -> Sink:
        sink = make_sink(folder, kind=kind, format=using)
        self._folders[sink] = folder
        return sink

    def rows(self, sink: Sink, table: str) -> list[dict[str, Any]]:
        return rows_in(self._folders[sink] / table)


class InBigQuery(Written):
    def __init__(self, folder: Path, server: BigQueryServer, door: Door) -> None:
        self._server = server
        self._datasets: dict[Sink, str] = {}
        for kind in ("mirror", "changelogs"):
            server.client.create_dataset(kind)
            sink = make_sink(
                f"bq://{PROJECT}/{kind}",
                kind=kind,
                format="bigquery",
                checkpoint=str(folder / kind),
                storage_options=server.options(door),
            )
            self._datasets[sink] = kind
        self.mirrors, self.typed = self._datasets

    def rows(self, sink: Sink, table: str) -> list[dict[str, Any]]:
        return self._server.query(f"SELECT * FROM `{PROJECT}.{self._datasets[sink]}.{table}`")

    def held(self, row: Mapping[str, Any]) -> str:
        arrays = {name for name, kind in COLUMNS.items() if kind[:5] == "ARRAY" or "[]" in kind}
        arrays &= row.keys()
        full = {name: [v for v in row[name] or () if v is not None] for name in arrays}
        return plain({**row, **full})


class InPostgresql(Written):
    def __init__(self, folder: Path, url: str) -> None:
        self._database = Database(url, "tests")
        self._database.run("CREATE SCHEMA typed")
        of_typed = f"{url}&options=-csearch_path%3Dtyped"
        self._schemas: dict[Sink, str] = {}
        for kind, path, schema in (("mirror", url, "public"), ("changelogs", of_typed, "typed")):
            sink = make_sink(path, kind=kind, format="postgresql", checkpoint=str(folder / kind))
            self._schemas[sink] = schema
        self.mirrors, self.typed = self._schemas

    def rows(self, sink: Sink, table: str) -> list[dict[str, Any]]:
        rows = in_database(self._database, f'SELECT * FROM {self._schemas[sink]}."{table}"')
        values = {f.name: TYPED.get(f.name.rpartition(".")[2]) for f in rows.schema}
        schema = pa.schema([(f.name, plain_type(f.type, values[f.name])) for f in rows.schema])
        typed = rows.cast(schema).to_pylist()
        said = [{name: self._as_said(value) for name, value in row.items()} for row in typed]
        return said if sink is self.mirrors else [with_parts(nested(row)) for row in said]

    @staticmethod
    def _as_said(value: Any) -> Any:
        if isinstance(value, uuid.UUID):
            return str(value)
        # The driver has a text of its own for a numeric that is none.
        return "NaN" if value == "nan" else value


class InDuckLake(Written):
    def __init__(self, folder: Path) -> None:
        self._lakes: dict[Sink, Lake] = {}
        for kind in ("mirror", "changelogs"):
            sink = make_sink(folder / kind, kind=kind, format="ducklake")
            self._lakes[sink] = Lake.in_folder(folder / kind)
        self.mirrors, self.typed = self._lakes

    def rows(self, sink: Sink, table: str) -> list[dict[str, Any]]:
        return self._lakes[sink].rows(f'"{table}"')


def plain_type(kind: pa.DataType, value: Any) -> pa.DataType:
    """Return a type of the driver's, which has numerics as texts of a type of its own."""
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type, value))
    if isinstance(kind, pa.OpaqueType):
        return pa.string() if isinstance(value, str) else pa.decimal128(38, 9)
    return kind


@pytest.fixture(
    params=[
        "delta",
        "bigquery",
        "postgresql",
        *(pytest.param(of, marks=pytest.mark.long) for of in ("iceberg", "ducklake")),
    ]
)
def written(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Written]:
    if request.param == "postgresql":
        for values in (SAID, TYPED):
            for name in [n for n, v in values.items() if isinstance(v, str) and "\0" in v]:
                # PostgreSQL's texts can't have it.
                monkeypatch.setitem(values, name, "no U+0000")
        url = request.getfixturevalue("new_postgres_url")()
        yield InPostgresql(tmp_path, url.replace("+psycopg", ""))
    elif request.param == "ducklake":
        yield InDuckLake(tmp_path)
    elif request.param == "bigquery":
        with bigquery_server() as server, server.door() as door:
            yield InBigQuery(tmp_path, server, door)
    else:
        yield InFolders(tmp_path, request.param)


def test_rows_are_the_models(session: SparkSession, written: Written) -> None:
    choose = random.Random(43)
    tables = [Table(capture, choose) for capture in CAPTURES]
    after: dict[str, list[Any]] = {capture: [] for capture in CAPTURES}
    for sink in (written.mirrors, written.typed):
        sink.position(session)
    for epoch in range(2):
        for number in range(60):
            tables[number % len(tables)].change(epoch * 1_000 + number)
        records = [record for table in tables for record, _ in table.changes]
        for sink in (written.mirrors, written.typed):
            summary = sink.stage(frame(session, records), epoch)
            sink.publish(session, epoch, summary, low_watermark(epoch))
        for table in tables:
            rows = written.rows(written.mirrors, f"T{table.capture}")
            assert sorted(map(plain, rows)) == sorted(map(written.held, table.typed_rows()))
            after[table.capture] += [(record[1], row) for record, row in table.changes]
            table.changes.clear()
    assert all(table.rows for table in tables)
    kinds = {row["mod_type"] for row in written.rows(written.typed, f"T{CAPTURES[0]}")}
    assert kinds == {"INSERT", "UPDATE", "DELETE"}
    for capture, expected in after.items():
        rows = written.rows(written.typed, f"T{capture}")
        by_transaction = {row["server_transaction_id"]: row for row in rows}
        assert len(by_transaction) == len(rows) == len(expected)
        for transaction, typed_row in expected:
            row = by_transaction[transaction]
            if typed_row is None:
                assert row["after"] is None
                continue
            named = [*KEY, *row["given"]["after"]]
            of_row = {name: row["after"][name] for name in named}
            assert plain(of_row) == written.held({name: typed_row[name] for name in named})
