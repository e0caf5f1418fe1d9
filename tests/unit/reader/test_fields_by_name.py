"""Fields that Spanner adds or moves are decoded right; what can't be decoded is a clear error."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud.spanner_v1.types import TypeCode
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.googlesql_columns import decode_columns
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.decode.result_layout import layout_of
from slackwater.reader.errors import DecodeError
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)
from tests.support.spanner_messages import (
    PartialResultSetPb,
    googlesql_metadata,
    googlesql_row,
    value,
)
from tests.unit.reader.test_batch_decoder import rows_of
from tests.unit.reader.test_records import CHILDREN, DATA, MICROSECONDS

RECORDS = DATA | CHILDREN | st.builds(HeartbeatRecord, MICROSECONDS)
SEEDS = st.integers(0, 2**32)
ADDED = "a_new_field"


def rearranged_type(kind: Any, order: Callable[[str, list[Any]], None], path: str = "") -> Any:
    """Return a type with a new field in each struct, and the fields of each in another order."""
    made = type(kind)(code=kind.code)
    if kind.code == TypeCode.ARRAY:
        item = rearranged_type(kind.array_element_type, order, f"{path}[]")
        made.array_element_type.CopyFrom(item)
    elif kind.code == TypeCode.STRUCT:
        fields = [
            (field.name, rearranged_type(field.type_, order, f"{path}.{field.name}"))
            for field in kind.struct_type.fields
        ]
        fields.append((ADDED, type(kind)(code=TypeCode.STRING)))
        order(path, fields)
        for name, field_type in fields:
            made.struct_type.fields.add(name=name).type_.CopyFrom(field_type)
    return made


def rearranged(
    kind: Any, cell: Any, order: Callable[[str, list[Any]], None], path: str = ""
) -> Any:
    """Return a value of the type before, as one of the rearranged type."""
    made = type(cell)()
    made.CopyFrom(cell)
    if cell.WhichOneof("kind") != "list_value":
        return made
    del made.list_value.values[:]
    cells = list(cell.list_value.values)
    if kind.code == TypeCode.ARRAY:
        cells = [rearranged(kind.array_element_type, item, order, f"{path}[]") for item in cells]
    elif kind.code == TypeCode.STRUCT:
        fields = kind.struct_type.fields
        cells = [
            rearranged(field.type_, item, order, f"{path}.{field.name}")
            for field, item in zip(fields, cells, strict=True)
        ]
        cells.append(value("new"))
        order(path, cells)
    made.list_value.values.extend(cells)
    return made


def order_by(seed: int) -> Callable[[str, list[Any]], None]:
    """Return a shuffle that gives the same order wherever a struct of the same path is met."""
    return lambda path, items: random.Random(f"{seed} {path}").shuffle(items)


def message(metadata: Any, *rows: Any) -> bytes:
    return bytes(PartialResultSetPb(metadata=metadata, values=rows).SerializeToString())


@given(st.lists(RECORDS, min_size=1, max_size=3), SEEDS)
def test_added_and_moved_fields_change_nothing(records: list[ChangeRecord], seed: int) -> None:
    usual = googlesql_metadata()
    (column,) = usual.row_type.fields
    metadata = googlesql_metadata()
    metadata.row_type.fields[0].type_.CopyFrom(rearranged_type(column.type_, order_by(seed)))
    rows = [rearranged(column.type_, googlesql_row(record), order_by(seed)) for record in records]
    sent = message(metadata, *rows)
    assert ChangeRecordDecoder().feed(sent) == records
    layout = layout_of(metadata)
    if layout is not None:
        columns = decode_columns([sent], layout)
        assert columns.fallback_messages or columns.batch.to_pylist() == rows_of(records)


@pytest.mark.parametrize("struct", ["column_types", "mods"])
def test_rows_with_another_column_type_or_mod_are_not_decoded_by_column(struct: str) -> None:
    metadata = googlesql_metadata()
    data = metadata.row_type.fields[0].type_.array_element_type.struct_type.fields[0]
    for field in data.type_.array_element_type.struct_type.fields:
        if field.name == struct:
            field.type_.array_element_type.struct_type.fields.add(name=ADDED)
    assert layout_of(metadata) is None
    assert layout_of(googlesql_metadata()) is not None


def structs(kind: Any) -> Iterator[Any]:
    if kind.code == TypeCode.ARRAY:
        yield from structs(kind.array_element_type)
    elif kind.code == TypeCode.STRUCT:
        yield kind
        for field in kind.struct_type.fields:
            yield from structs(field.type_)


@given(SEEDS)
def test_a_renamed_field_is_named_and_no_other_is_taken_for_it(seed: int) -> None:
    choose = random.Random(seed)
    metadata = googlesql_metadata()
    struct = choose.choice(list(structs(metadata.row_type.fields[0].type_)))
    field = choose.choice(list(struct.struct_type.fields))
    former, field.name = field.name, f"{field.name}_2"
    record = HeartbeatRecord(1_000)
    with pytest.raises(DecodeError, match=former):
        ChangeRecordDecoder().feed(message(metadata, googlesql_row(record)))


@given(RECORDS, SEEDS)
def test_a_malformed_cell_is_a_decode_error(record: ChangeRecord, seed: int) -> None:
    choose = random.Random(seed)
    row = googlesql_row(record)
    cell = row
    while cell.list_value.values and choose.random() < 0.9:
        cell = choose.choice(list(cell.list_value.values))
    cell.CopyFrom(value(choose.choice([None, True, "", "x", [], [[]], [["x"]]])))
    # Decoded, where the cell may hold any text; no other error comes through.
    with contextlib.suppress(DecodeError):
        ChangeRecordDecoder().feed(message(googlesql_metadata(), row))


def test_a_child_partition_without_a_token_is_refused() -> None:
    record = ChildPartitionsRecord(1_000, "0", (ChildPartition("", frozenset()),))
    with pytest.raises(DecodeError, match="no token"):
        ChangeRecordDecoder().feed(message(googlesql_metadata(), googlesql_row(record)))


def test_a_data_change_record_with_a_cell_too_few_is_refused() -> None:
    mods = (Mod("{}", None, None),)
    record = DataChangeRecord(
        1_000, "t", "0", True, "T", (), mods, "INSERT", "NEW_ROW", 1, 1, "", False
    )
    row = googlesql_row(record)
    cells = row.list_value.values[0].list_value.values[0].list_value.values[0].list_value.values
    del cells[-1]
    with pytest.raises(DecodeError, match="can't be read"):
        ChangeRecordDecoder().feed(message(googlesql_metadata(), row))
