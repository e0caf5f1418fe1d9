"""Changes of a table of Bigtable's as data change records: the listed cells, and no others."""

import json
import struct
from base64 import b64decode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.bigtable.changes import SCHEMA
from slackwater.reader.bigtable.records import records_of
from slackwater.reader.bigtable.table import BigtableTable

# Kind, family, qualifier, the two timestamps, value.
Entry = tuple[str, str, bytes | None, int | None, int | None, bytes | None]
CELLS = ("a:x", "a:y", "b:x")
NAMES = (*CELLS, "a:unlisted")


def records(
    *changes: list[Entry], columns: dict[str, str], key: bytes = b"key"
) -> list[dict[str, Any]]:
    table = BigtableTable("project", "instance", "table", columns=tuple(columns.items()))
    names = ("kind", "family", "qualifier", "timestamp_micros", "end_timestamp_micros", "value")
    rows = [
        {
            "commit_timestamp": 1_000_000 + number,
            "row_key": key,
            "type": "USER",
            "source_cluster_id": "c",
            "tiebreaker": number,
            "entries": [dict(zip(names, entry, strict=True)) for entry in entries],
            "partition": "[, )",
            "low_watermark": 2_000_000,
        }
        for number, entries in enumerate(changes)
    ]
    [batch] = records_of(table, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    made: list[dict[str, Any]] = batch.to_pylist()
    return made


def new_values(*entries: Entry, columns: dict[str, str]) -> dict[str, Any]:
    [record] = records(list(entries), columns=columns)
    [mod] = record["mods"]
    values: dict[str, Any] = json.loads(mod["new_values"])
    return values


def set_cell(name: str, value: bytes, micros: int = 1) -> Entry:
    family, qualifier = name.split(":")
    return ("SET_CELL", family, qualifier.encode(), micros, None, value)


def deleted(name: str, start: int = 0, end: int | None = None) -> Entry:
    family, qualifier = name.split(":")
    return ("DELETE_CELLS", family, qualifier.encode(), start, end, None)


ENTRIES = st.one_of(
    st.builds(set_cell, st.sampled_from(NAMES), st.binary(max_size=2), st.integers(0, 3)),
    st.builds(deleted, st.sampled_from(NAMES)),
    st.sampled_from("ab").map(lambda family: ("DELETE_FAMILY", family, None, None, None, None)),
    st.just(("DELETE_ROW", "", None, None, None, None)),
)


@given(st.lists(ENTRIES, max_size=8))
def test_a_column_has_what_a_reader_of_the_row_would_see(entries: list[Entry]) -> None:
    row: dict[str, dict[int, str]] = {}
    touched = set()
    for kind, family, qualifier, micros, _, value in entries:
        for name in NAMES if qualifier is None else [f"{family}:{qualifier.decode()}"]:
            if family and not name.startswith(f"{family}:"):
                continue
            touched.add(name)
            cells = row.setdefault(name, {})
            if kind == "SET_CELL":
                assert micros is not None
                assert value is not None
                cells[micros] = value.hex()
            else:
                cells.clear()
    expected = {
        name: row[name][max(row[name])] if row[name] else None for name in touched & set(CELLS)
    }
    values = new_values(*entries, columns=dict.fromkeys(CELLS, "BYTES"))
    assert {n: v and b64decode(v).hex() for n, v in values.items()} == expected


RANGES = st.builds(deleted, st.sampled_from(NAMES), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(st.one_of(ENTRIES, RANGES), max_size=8))
def test_what_a_column_has_is_so_whatever_older_cells_the_row_had(entries: list[Entry]) -> None:
    values = new_values(*entries, columns=dict.fromkeys(CELLS, "BYTES"))
    for older in ({}, {-1: "older"}):
        row: dict[str, dict[int, str]] = {name: dict(older) for name in NAMES}
        for kind, family, qualifier, micros, end, value in entries:
            for name in NAMES if qualifier is None else [f"{family}:{qualifier.decode()}"]:
                if not name.startswith(f"{family}:" if family else ""):
                    continue
                if kind == "SET_CELL":
                    assert micros is not None
                    row[name][micros] = (value or b"").hex()
                elif kind == "DELETE_CELLS":
                    first, past = micros or -1, end or 9
                    row[name] = {t: v for t, v in row[name].items() if not first <= t < past}
                else:
                    row[name] = {}
        for name, said in values.items():
            latest = row[name][max(row[name])] if row[name] else None
            assert (said and b64decode(said).hex()) == latest


@pytest.mark.parametrize(
    ("code", "value", "expected"),
    [
        ("BYTES", b"\x00\xff", "AP8="),
        ("STRING", "é".encode(), "é"),
        ("STRING", b"\xff", {"bytes": "/w=="}),
        ("INT64", struct.pack(">q", -7), "-7"),
        ("INT64", b"7", {"bytes": "Nw=="}),
        ("FLOAT64", struct.pack(">d", 1.5), 1.5),
        ("FLOAT64", struct.pack(">d", float("-inf")), "-Infinity"),
        ("FLOAT64", struct.pack(">d", float("nan")), "NaN"),
    ],
)
def test_a_value_is_as_spanners_json_has_it(code: str, value: bytes, expected: Any) -> None:
    assert new_values(set_cell("a:x", value), columns={"a:x": code}) == {"a:x": expected}


def test_what_a_change_does_not_tell_is_not_in_it() -> None:
    columns = dict.fromkeys(CELLS, "BYTES")
    added: Entry = ("ADD_TO_CELL", "a", b"y", 1, None, b"\0" * 8)
    said = new_values(set_cell("a:x", b"1"), added, deleted("b:x", 1, 5), columns=columns)
    assert said == {"a:x": "MQ=="}


def test_each_change_has_an_identity_and_its_place_among_those_of_its_row() -> None:
    changes = [[set_cell("a:x", b"1")]] * 12
    own = records(*changes, columns={"row_key": "STRING"})
    others = records(*changes, columns={"row_key": "STRING"}, key=b"other")
    places = [
        (r["commit_timestamp"], r["server_transaction_id"], r["record_sequence"]) for r in own
    ]
    assert places == sorted(places)
    every = {(r["server_transaction_id"], r["record_sequence"]) for r in (*own, *others)}
    assert len(every) == 24
    assert json.loads(own[0]["mods"][0]["keys"]) == {"row_key": "key"}
