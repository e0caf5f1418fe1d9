"""Both dialects' messages decode to the same records, however they were cut."""

import copy
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.decode.arrow import data_columns, to_record_batch
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.decode.result_rows import merge_chunk
from slackwater.reader.errors import DecodeError, UnsupportedStreamError
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)
from slackwater.reader.schema import SCHEMA
from tests.support.spanner_messages import (
    PartialResultSetPb,
    googlesql_metadata,
    googlesql_row,
    messages,
    postgresql_row,
    value,
)

MICROSECONDS = st.integers(0, 4_000_000_000_000_000).map(lambda us: us * 1000)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
JSON_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)


def json_values(depth: int) -> st.SearchStrategy[Any]:
    """As st.recursive makes them, which draws each several times to limit its size."""
    if depth == 0:
        return JSON_SCALARS
    inner = json_values(depth - 1)
    return JSON_SCALARS | st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)


JSON_VALUES = json_values(3)
JSON_OBJECT = st.dictionaries(TEXT, JSON_VALUES, max_size=4).map(
    lambda of: json.dumps(of, ensure_ascii=False, separators=(",", ":"))
)
MODS = st.builds(Mod, JSON_OBJECT, st.none() | JSON_OBJECT, st.none() | JSON_OBJECT)
COLUMNS = st.builds(
    ColumnType,
    TEXT,
    st.sampled_from(
        ['{"code":"INT64"}', '{"array_element_type":{"code":"STRING"},"code":"ARRAY"}']
    ),
    st.booleans(),
    st.integers(1, 1024),
)
DATA = st.builds(
    DataChangeRecord,
    MICROSECONDS,
    TEXT,
    TEXT,
    st.booleans(),
    TEXT,
    st.lists(COLUMNS, max_size=3).map(tuple),
    st.lists(MODS, max_size=4).map(tuple),
    st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    st.sampled_from(["OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES"]),
    st.integers(1, 10**6),
    st.integers(1, 10**3),
    TEXT,
    st.booleans(),
)
TOKENS = st.text("abc", min_size=1, max_size=3)
CHILDREN = st.builds(
    ChildPartitionsRecord,
    MICROSECONDS,
    TEXT,
    st.lists(
        st.builds(ChildPartition, TOKENS, st.frozensets(TOKENS, max_size=2)), min_size=1, max_size=3
    ).map(tuple),
)
RECORDS = st.lists(DATA | CHILDREN | st.builds(HeartbeatRecord, MICROSECONDS), max_size=5)


def decoded(parts: list[bytes]) -> list[ChangeRecord]:
    decoder = ChangeRecordDecoder()
    records = [record for part in parts for record in decoder.feed(part)]
    decoder.finish()
    return records


@given(RECORDS)
def test_googlesql_rows_decode_to_the_records_that_were_sent(records: list[ChangeRecord]) -> None:
    assert decoded(messages([googlesql_row(r) for r in records], is_postgresql=False)) == records


@given(RECORDS)
def test_postgresql_rows_decode_to_the_records_that_were_sent(records: list[ChangeRecord]) -> None:
    rows = [postgresql_row(r) for r in records]
    got = decoded(messages(rows, is_postgresql=True))
    assert [_parsed(r) for r in got] == [_parsed(r) for r in records]


def _parsed(record: ChangeRecord) -> Any:
    """With the JSON texts parsed: spelling may differ, the value may not."""
    if not isinstance(record, DataChangeRecord):
        return record
    mods = [[None if text is None else json.loads(text) for text in mod] for mod in record.mods]
    return record._replace(mods=()), json.dumps(mods)


def test_a_number_in_postgresql_json_keeps_its_spelling() -> None:
    text = (
        '{"data_change_record":{"commit_timestamp":"2026-01-01T00:00:00+00:00",'
        '"server_transaction_id":"t","record_sequence":"0",'
        '"is_last_record_in_transaction_in_partition":true,"table_name":"t","column_types":[],'
        '"mods":[{"keys":{"k":1.50},"new_values":{"n":123456789012345678901234567890.5e-3,'
        '"i":123456789012345678901234567890}}],"mod_type":"INSERT","value_capture_type":"NEW_ROW",'
        '"number_of_records_in_transaction":1,"number_of_partitions_in_transaction":1}}'
    )
    (record,) = decoded(messages([value(text)], is_postgresql=True))
    assert isinstance(record, DataChangeRecord)
    assert record.mods == (
        Mod(
            '{"k":1.50}',
            '{"n":123456789012345678901234567890.5e-3,"i":123456789012345678901234567890}',
            None,
        ),
    )


def cuts(whole: Any, data: st.DataObject) -> list[Any]:
    """The whole value in two pieces, cut anywhere that Spanner may cut."""
    kind = whole.WhichOneof("kind")
    left, right = copy.deepcopy(whole), copy.deepcopy(whole)
    if kind == "string_value":
        at = data.draw(st.integers(0, len(whole.string_value)))
        left.string_value, right.string_value = whole.string_value[:at], whole.string_value[at:]
        return [left, right]
    items = list(whole.list_value.values)
    at = data.draw(st.integers(0, len(items)))
    del left.list_value.values[at:]
    del right.list_value.values[:at]
    if at < len(items) and items[at].WhichOneof("kind") in ("string_value", "list_value"):
        pieces = cuts(items[at], data)
        if len(pieces) == 1:
            return [whole]
        first, second = pieces
        left.list_value.values.append(first)
        del right.list_value.values[:]
        right.list_value.values.extend([second, *items[at + 1 :]])
    elif (
        at and at < len(items) and items[at - 1].WhichOneof("kind") == items[at].WhichOneof("kind")
    ):
        # Two neighbours of a kind that can be merged are never the two ends of a cut.
        return [whole]
    return [left, right]


@given(DATA, st.data())
def test_a_value_cut_over_messages_is_put_together_again(
    record: DataChangeRecord, data: st.DataObject
) -> None:
    row = googlesql_row(record)
    pieces = cuts(row, data)
    parts = [PartialResultSetPb(values=[piece]) for piece in pieces]
    for part in parts[:-1]:
        part.chunked_value = True
    parts[0].metadata.CopyFrom(googlesql_metadata())
    assert decoded([part.SerializeToString() for part in parts]) == [record]


def test_values_that_are_never_cut_are_not_merged() -> None:
    with pytest.raises(DecodeError, match="merged"):
        merge_chunk(value(True), value(True))


def test_a_query_that_ends_in_the_middle_of_a_value_is_an_error() -> None:
    part = PartialResultSetPb(values=[value("half")], chunked_value=True)
    part.metadata.CopyFrom(googlesql_metadata())
    with pytest.raises(DecodeError, match="middle"):
        decoded([part.SerializeToString()])


def test_a_stream_of_another_form_is_named_as_such() -> None:
    part = PartialResultSetPb()
    part.metadata.row_type.fields.add(name="ChangeRecord").type_.code = 13
    with pytest.raises(UnsupportedStreamError, match="type code 13"):
        decoded([part.SerializeToString()])


def test_an_answer_without_metadata_is_broken_and_not_a_stream_of_another_form() -> None:
    for message in (b"", PartialResultSetPb(values=[value("{}")]).SerializeToString()):
        with pytest.raises(DecodeError, match="no metadata"):
            decoded([message])


@given(st.lists(st.tuples(TOKENS, st.lists(DATA, max_size=4)), max_size=3))
@settings(max_examples=50)
def test_a_record_batch_holds_every_field_of_every_record(
    groups: list[tuple[str, list[DataChangeRecord]]],
) -> None:
    data = data_columns([record for _, records in groups for record in records])
    owners = [(token, len(records)) for token, records in groups]
    batch = to_record_batch(data, owners, low_watermark_ns=5_500)
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    rows = pa.Table.from_batches([batch]).to_pylist()
    expected = [(token, record) for token, group in groups for record in group]
    assert len(rows) == len(expected)
    for row, (token, record) in zip(rows, expected, strict=True):
        assert row.pop("partition_token") == token
        assert row.pop("low_watermark").microsecond == 5
        row.pop("commit_timestamp")
        fields = record._asdict()
        fields.pop("commit_timestamp_ns")
        fields["column_types"] = [c._asdict() for c in record.column_types]
        fields["mods"] = [m._asdict() for m in record.mods]
        assert row == fields
    got = batch.column(0).cast(pa.int64()).to_pylist()
    assert got == [record.commit_timestamp_ns // 1000 for _, record in expected]
