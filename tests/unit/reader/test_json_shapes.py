"""Records with the shape of others become what a parser makes of them, and no others are taken."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf.struct_pb2 import Value
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.json_mods import plain_mods
from slackwater.reader.decode.json_shapes import ShapedRecords
from slackwater.reader.decode.postgresql_columns import decode_json_columns
from slackwater.reader.decode.postgresql_records import PostgreSqlRows
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.records import ColumnType, DataChangeRecord, Mod
from tests.support.spanner_messages import PartialResultSetPb, postgresql_row

_TYPES = (
    ColumnType("Id", '{"code":"INT64"}', True, 1),
    ColumnType("N", '{"code":"STRING"}', False, 2),
)


def record(number: int, **fields: Any) -> DataChangeRecord:
    mod = Mod(f'{{"Id":"{number}"}}', f'{{"N":"name {number}"}}', "{}")
    one = DataChangeRecord(
        1_769_850_000_000_000_000 + number * 1_000, "t", "00000000", number % 2 == 0, "T",
        _TYPES, (mod,) * (1 + number % 3), "UPDATE", "NEW_VALUES", 10 ** (number % 3), 1, "", False,
    )  # fmt: skip
    return one._replace(**fields)


def text_of(one: DataChangeRecord) -> str:
    return str(postgresql_row(one).string_value)


def shaped(texts: Sequence[str]) -> tuple[ShapedRecords, list[dict[str, Any]]]:
    """What has a shape among JSON records; and the columns that a parser gives for it."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded])
    begins = ends - [len(text) for text in encoded]
    after = np.array([text.index(b'],"commit_timestamp"') + 1 for text in encoded]) + begins
    nothing = np.zeros(0, np.int64)
    rows = RowSpans(b"".join(encoded) + bytes(4_096), nothing, nothing, nothing, nothing == 0)
    taken = ShapedRecords.among(rows, after, ends)
    expected: list[Any] = [
        PostgreSqlRows().decode(Value(string_value=texts[i]))[0] for i in taken.index
    ]
    return taken, data_columns(expected).to_pylist()


def columns_of(taken: ShapedRecords) -> list[dict[str, Any]]:
    """The columns of records without their column types."""
    rows: list[dict[str, Any]] = taken.scalars.to_pylist()
    return [row | {"mods": mods} for row, mods in zip(rows, taken.mods.to_pylist(), strict=True)]


def without_types(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name != "column_types"} for row in rows]


def test_records_of_some_sizes_and_with_some_mods_all_have_a_shape() -> None:
    taken, expected = shaped([text_of(record(i)) for i in range(100)])
    assert taken.index.tolist() == list(range(100))
    assert columns_of(taken) == without_types(expected)


# What a text may hold that looks like something else.
_PIECES = st.sampled_from(
    [
        *'aü"\\{}[],:\n/\u0001',
        *("keys", "new_values", "old_values", "mods", '"old_values":', '{"a":{"b":1}}'),
        *('},"new_values":{', '}},{"keys":{', "}}]"),
    ]
)
_TEXTS = st.lists(_PIECES, max_size=4).map("".join)
_NAMES = st.sampled_from(["N", "keys", "new_values", "old_values"])
_VALUES = st.recursive(
    _TEXTS | st.none() | st.integers(-5, 5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(_NAMES, _VALUES, max_size=2)
_MODS = st.builds(
    lambda *values: Mod(*(None if v is None else orjson.dumps(v).decode() for v in values)),
    _OBJECTS,
    _OBJECTS | st.none(),
    _OBJECTS | st.none(),
)
_RECORDS = st.builds(
    record,
    st.integers(0, 20),
    mods=st.lists(_MODS, max_size=3).map(tuple),
    transaction_tag=_TEXTS,
    server_transaction_id=_TEXTS.filter(bool),
    is_system_transaction=st.booleans(),
)


@given(st.lists(_RECORDS | st.builds(record, st.integers(0, 20)), min_size=1, max_size=12))
def test_what_is_taken_is_what_a_parser_gives(records: list[DataChangeRecord]) -> None:
    taken, expected = shaped([text_of(one) for one in records])
    assert columns_of(taken) == without_types(expected)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"table_name":"T"', '"table_name":"T","table_name":"U"'),
        ('"table_name":"T"', '"table_name":7'),
        ('"table_name":"T"', '"another_name":"T"'),
        ('"transaction_tag":"",', '"other_tag":"",'),
        ('"is_system_transaction":false', '"is_system_transaction":0'),
        ('"mod_type":"UPDATE"', '"mod_type":null'),
        ('"mod_type":"UPDATE"', r'"mod_type":"UPD\nAT"'),
        ('"mods":[{', '"mods":[1,{'),
        ('"mods":[{', '"mods":[{},{'),
        ('"keys":{"Id"', '"key":{"Id"'),
        ('"old_values":{}', '"old_values":{},"a":{}'),
        ('"old_values":{}', '"old_values":null'),
        ('"new_values":{"N":"', '"new_values":{"N":"\\u0041'),
        ('"new_values":{"N":"', '"new_values":{"N":{"old_values":{}},"M":"'),
    ],
)
def test_a_record_of_another_shape_is_not_taken(was: str, becomes: str) -> None:
    texts = [text_of(record(0))] * 3
    changed = texts[1].replace(was, becomes)
    assert changed != texts[1]
    json.loads(changed)
    for odd_one in range(3):
        texts = [text_of(record(0))] * 3
        texts[odd_one] = changed
        taken, _ = shaped(texts)
        assert taken.index.tolist() == [i for i in range(3) if i != odd_one]


def test_one_record_of_another_shape_leaves_the_others_by_column() -> None:
    odd = text_of(record(0)).replace('"mod_type":"UPDATE"', '"mod_type":null')
    texts = [text_of(record(i)) for i in range(9)]
    texts[4] = odd
    parts = [PartialResultSetPb(values=[Value(string_value=text)]) for text in texts]
    decoded = decode_json_columns([part.SerializeToString() for part in parts])
    assert list(decoded.fallback_messages) == [4]
    assert decoded.batch.num_rows == 8


def test_mods_of_no_record_are_none() -> None:
    nothing = np.zeros(0, np.int64)
    mods, is_plain = plain_mods(bytes(4_096), nothing, nothing)
    assert (len(mods), len(is_plain)) == (0, 0)
