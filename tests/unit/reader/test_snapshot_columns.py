"""The rows of a table as columns: their texts are those that a record of each has."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.snapshot_columns import row_columns
from slackwater.reader.records import ColumnType

# With one character that JSON escapes, or would escape elsewhere.
TEXTS = st.one_of(st.text(), st.text("ab", max_size=3), st.sampled_from('"\\\n\x1f\x7fé'))
VALUES = st.one_of(
    TEXTS, st.none(), st.booleans(), st.floats(allow_nan=False), st.lists(TEXTS, max_size=2)
)
NAMES = ('a "b"', "id", "é")


@given(
    st.one_of(
        st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1),
        st.lists(st.tuples(VALUES, TEXTS, VALUES), min_size=1),
    )
)
def test_a_rows_texts_are_its_json_whatever_the_other_rows_have(rows: list[tuple[object]]) -> None:
    columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
    types = [ColumnType(name, '{"code":"STRING"}', name == "id", 1) for name in NAMES]
    made = row_columns(columns, ("id",), types, table="T", at_ns=5_000, first=7)
    assert made.column("record_sequence").to_pylist()[0] == "00000007"
    for row, (mod,) in zip(rows, made.column("mods").to_pylist(), strict=True):
        values = dict(zip(NAMES, row, strict=True))
        assert mod["keys"] == orjson.dumps({"id": values.pop("id")}).decode()
        assert mod["new_values"] == orjson.dumps(values, option=orjson.OPT_SORT_KEYS).decode()
