"""Rows of partition_mode MUTABLE_KEY_RANGE give what the other mode gives for the same change."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import DecodeError, UnsupportedStreamError
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import (
    ChangeRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from tests.support.proto_messages import (
    ChangeStreamRecordPb,
    proto_messages,
    proto_metadata,
    proto_record,
    proto_row,
    row_of,
)
from tests.support.spanner_messages import (
    PartialResultSetPb,
    googlesql_row,
    messages,
    postgresql_row,
    value,
)
from tests.unit.reader.test_records import MICROSECONDS, cuts

DIALECTS = pytest.mark.parametrize("dialect", list(Dialect))
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=6)
# A protobuf value has no whole numbers: Spanner writes INT64 as a text.
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
TYPES = (
    '{"code":"INT64"}',
    '{"array_element_type":{"code":"FLOAT64"},"code":"ARRAY"}',
    '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}',
    '{"code":"PROTO","proto_type_fqn":"shop.Order"}',
)


def json_text(members: dict[str, Any]) -> str:
    """As Spanner writes the JSON type: members by name, no spaces."""
    return orjson.dumps(members, option=orjson.OPT_SORT_KEYS).decode()


@st.composite
def data_changes(draw: st.DrawFn) -> DataChangeRecord:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    columns = tuple(
        ColumnType(name, draw(st.sampled_from(TYPES)), draw(st.booleans()), position)
        for position, name in enumerate(names, 1)
    )
    members = st.dictionaries(st.sampled_from(names), VALUES, max_size=4).map(json_text)
    return DataChangeRecord(
        draw(MICROSECONDS),
        draw(NAMES),
        draw(NAMES),
        draw(st.booleans()),
        draw(NAMES),
        columns,
        tuple(draw(st.lists(st.builds(Mod, members, members, members), max_size=3))),
        draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"])),
        draw(
            st.sampled_from(
                ["OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES"]
            )
        ),
        draw(st.integers(1, 2**31 - 1)),
        draw(st.integers(1, 2**31 - 1)),
        draw(st.just("") | NAMES),
        draw(st.booleans()),
    )


TIMES = st.integers(0, 4_000_000_000_000_000_000)
TOKENS = st.lists(NAMES, max_size=3).map(tuple)
OTHER_RECORDS = (
    st.builds(HeartbeatRecord, TIMES)
    | st.builds(
        PartitionStartRecord, TIMES, NAMES, st.lists(NAMES, min_size=1, max_size=3).map(tuple)
    )
    | st.builds(PartitionEndRecord, TIMES, NAMES, NAMES)
    | st.builds(PartitionEventRecord, TIMES, NAMES, NAMES, TOKENS, TOKENS)
)


def decoded(
    parts: list[bytes], mode: PartitionMode = PartitionMode.MUTABLE_KEY_RANGE
) -> list[ChangeRecord]:
    decoder = ChangeRecordDecoder(mode)
    records = [record for part in parts for record in decoder.feed(part)]
    decoder.finish()
    return records


@DIALECTS
@given(st.lists(data_changes() | OTHER_RECORDS, max_size=4))
def test_rows_decode_to_the_records_that_were_sent(
    dialect: Dialect, records: list[ChangeRecord]
) -> None:
    assert decoded(proto_messages([proto_row(r) for r in records], dialect)) == records


@given(st.lists(data_changes(), min_size=1, max_size=3))
@settings(max_examples=50)
def test_a_change_has_the_same_columns_in_both_partition_modes(
    records: list[DataChangeRecord],
) -> None:
    rows = messages([googlesql_row(record) for record in records], is_postgresql=False)
    immutable = decoded(rows, PartitionMode.IMMUTABLE_KEY_RANGE)
    mutable = decoded(
        proto_messages([proto_row(record) for record in records], Dialect.GOOGLE_STANDARD_SQL)
    )
    assert data_columns(_data(mutable)).equals(data_columns(_data(immutable)))


@given(data_changes())
@settings(max_examples=50)
def test_a_change_has_the_same_values_in_postgresql_json(record: DataChangeRecord) -> None:
    rows = messages([postgresql_row(record)], is_postgresql=True)
    (immutable,) = _data(decoded(rows, PartitionMode.IMMUTABLE_KEY_RANGE))
    (mutable,) = _data(decoded(proto_messages([proto_row(record)], Dialect.POSTGRESQL)))
    assert _parsed(mutable) == _parsed(immutable)


def _data(records: list[ChangeRecord]) -> list[DataChangeRecord]:
    return [record for record in records if isinstance(record, DataChangeRecord)]


def _parsed(record: DataChangeRecord) -> Any:
    """With the JSON texts parsed: there the order of the members may differ."""
    mods = [[json.loads(text or "null") for text in mod] for mod in record.mods]
    columns = [column._replace(type=json.loads(column.type)) for column in record.column_types]
    return record._replace(mods=(), column_types=()), mods, columns


@given(data_changes(), st.data())
def test_a_row_cut_over_messages_is_put_together_again(
    record: DataChangeRecord, data: st.DataObject
) -> None:
    parts = [PartialResultSetPb(values=[piece]) for piece in cuts(proto_row(record), data)]
    for part in parts[:-1]:
        part.chunked_value = True
    parts[0].metadata.CopyFrom(proto_metadata(Dialect.GOOGLE_STANDARD_SQL))
    assert decoded([part.SerializeToString() for part in parts]) == [record]


@given(OTHER_RECORDS)
def test_every_record_has_a_time(record: ChangeRecord) -> None:
    times = [getattr(record, name) for name in dir(record) if name.endswith("timestamp_ns")]
    assert times == [record_time_ns(record)]


RECORD = DataChangeRecord(
    1_000,
    "transaction",
    "00000000",
    True,
    "Accounts",
    (
        ColumnType("Id", '{"code":"INT64"}', True, 1),
        ColumnType("Name", '{"code":"STRING"}', False, 2),
    ),
    (Mod('{"Id":"1"}', '{"Name":"a"}', "{}"),),
    "UPDATE",
    "OLD_AND_NEW_VALUES",
    1,
    1,
    "",
    False,
)
EVENT = PartitionEventRecord(1_000, "00000001", "here", ("source",), ("destination",))
START = PartitionStartRecord(1_000, "00000001", ("one", "two"))
END = PartitionEndRecord(1_000, "00000001", "here")


def _change(of: ChangeRecord, change: Callable[[Any], object]) -> Any:
    message = proto_record(of)
    change(getattr(message, message.WhichOneof("record")))
    return row_of(message)


BROKEN = {
    "not a text": (value(None), "a row is null_value"),
    "not base64": (value("*"), "base64"),
    "not a message": (value(b64encode(b"\xff\xff").decode()), "can't be read"),
    "of no kind": (row_of(ChangeStreamRecordPb()), "none of the five kinds"),
    "without a time": (
        _change(RECORD, lambda r: r.ClearField("commit_timestamp")),
        "commit_timestamp is missing",
    ),
    "without a heartbeat's time": (
        _change(HeartbeatRecord(1), lambda r: r.ClearField("timestamp")),
        "timestamp is missing",
    ),
    "without a transaction": (
        _change(RECORD, lambda r: r.ClearField("server_transaction_id")),
        "server_transaction_id is missing",
    ),
    "without a sequence": (
        _change(RECORD, lambda r: r.ClearField("record_sequence")),
        "record_sequence is missing",
    ),
    "without a table": (_change(RECORD, lambda r: r.ClearField("table")), "table is missing"),
    "without a mod type": (
        _change(RECORD, lambda r: r.ClearField("mod_type")),
        "mod_type is 0, which has no name",
    ),
    "with a new mod type": (
        _change(RECORD, lambda r: setattr(r, "mod_type", 40)),
        "mod_type is 40, which has no name",
    ),
    "with a new value capture type": (
        _change(RECORD, lambda r: setattr(r, "value_capture_type", 50)),
        "value_capture_type is 50",
    ),
    "of a transaction without records": (
        _change(RECORD, lambda r: r.ClearField("number_of_records_in_transaction")),
        "number_of_records_in_transaction is 0",
    ),
    "with a column beyond the last": (
        _change(RECORD, lambda r: setattr(r.mods[0].keys[0], "column_metadata_index", 2)),
        "column 2 of 2",
    ),
    "with a column before the first": (
        _change(RECORD, lambda r: setattr(r.mods[0].keys[0], "column_metadata_index", -1)),
        "column -1 of 2",
    ),
    "with a column twice": (
        _change(RECORD, lambda r: r.mods[0].keys.append(r.mods[0].keys[0])),
        "two values of column Id",
    ),
    "with a column that has no value": (
        _change(RECORD, lambda r: r.mods[0].keys[0].ClearField("value")),
        "without a value",
    ),
    "with a number that JSON has not": (
        _change(RECORD, lambda r: setattr(r.mods[0].keys[0].value, "number_value", float("nan"))),
        "nan is not a number",
    ),
    "with a column that has no type": (
        _change(RECORD, lambda r: r.column_metadata[0].ClearField("type_")),
        "column Id has no type",
    ),
    "with a column that has no name": (
        _change(RECORD, lambda r: r.column_metadata[0].ClearField("name")),
        "name is missing",
    ),
    "with a column that has no place": (
        _change(RECORD, lambda r: r.column_metadata[0].ClearField("ordinal_position")),
        "ordinal_position is 0",
    ),
    "with a start of no partition": (
        _change(START, lambda r: r.ClearField("partition_tokens")),
        "names no partition",
    ),
    "with a start of a nameless partition": (
        _change(START, lambda r: r.partition_tokens.append("")),
        "names no partition",
    ),
    "without a start's time": (
        _change(START, lambda r: r.ClearField("start_timestamp")),
        "start_timestamp is missing",
    ),
    "with an end of no partition": (
        _change(END, lambda r: r.ClearField("partition_token")),
        "partition_token is missing",
    ),
    "without an end's time": (
        _change(END, lambda r: r.ClearField("end_timestamp")),
        "end_timestamp is missing",
    ),
    "with a move from nowhere": (
        _change(EVENT, lambda r: r.move_in_events[0].ClearField("source_partition_token")),
        "source_partition_token is missing",
    ),
    "with a move to nowhere": (
        _change(EVENT, lambda r: r.move_out_events.add()),
        "destination_partition_token is missing",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_row_that_is_not_as_documented_is_refused(name: str) -> None:
    row, reason = BROKEN[name]
    with pytest.raises(DecodeError, match=reason):
        decoded(proto_messages([row], Dialect.GOOGLE_STANDARD_SQL))


def test_the_partition_mode_that_is_not_expected_is_refused() -> None:
    for dialect in Dialect:
        parts = proto_messages([proto_row(START)], dialect)
        with pytest.raises(UnsupportedStreamError, match="type code"):
            decoded(parts, PartitionMode.IMMUTABLE_KEY_RANGE)
    for is_postgresql in (True, False):
        with pytest.raises(UnsupportedStreamError, match="created again"):
            decoded(messages([], is_postgresql=is_postgresql))


def test_a_column_of_another_protobuf_type_is_refused() -> None:
    part = PartialResultSetPb(metadata=proto_metadata(Dialect.GOOGLE_STANDARD_SQL))
    part.metadata.row_type.fields[0].type_.proto_type_fqn = "google.spanner.v2.ChangeStreamRecord"
    with pytest.raises(UnsupportedStreamError, match="type code 13"):
        decoded([part.SerializeToString()])
