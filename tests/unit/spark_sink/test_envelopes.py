"""Each envelope says of a change what its consumers expect."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, Message, Origin, dumps
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.envelopes.values import json_converter, row_values
from slackwater.spark_sink.sql.table_shape import TableShape

ORIGIN = Origin("orders", "p", "i", "d", "Everything")
COMMIT = datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
RFC = "2026-01-31T09:00:00.123456Z"
COLUMNS = [
    {"name": "Name", "type": '{"code":"STRING"}', "is_primary_key": False, "ordinal_position": 3},
    {"name": "Id", "type": '{"code":"INT64"}', "is_primary_key": True, "ordinal_position": 1},
    {"name": "At", "type": '{"code":"DATE"}', "is_primary_key": True, "ordinal_position": 2},
]
KEYS = '{"At":"2026-01-01","Id":"7"}'
KEY, ROW = {"Id": 7, "At": "2026-01-01"}, {"Id": 7, "At": "2026-01-01", "Name": "new"}


def record(
    mod_type: str = "UPDATE", *mods: Mapping[str, str | None], **fields: Any
) -> dict[str, Any]:
    new = None if mod_type == "DELETE" else '{"Name":"new"}'
    old = None if mod_type == "INSERT" else '{"Name":"old"}'
    return {
        "commit_timestamp": COMMIT,
        "server_transaction_id": "t1",
        "record_sequence": "00000003",
        "is_last_record_in_transaction_in_partition": True,
        "table_name": "sales.Orders",
        "column_types": COLUMNS,
        "mods": list(mods) or [{"keys": KEYS, "new_values": new, "old_values": old}],
        "mod_type": mod_type,
        "value_capture_type": "OLD_AND_NEW_VALUES",
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": "nightly",
        "is_system_transaction": False,
        "partition_token": "token",
        "low_watermark": COMMIT,
    } | fields


def messages(envelope: str, row: dict[str, Any], **options: Any) -> list[Message]:
    return list(envelopes()[envelope](EnvelopeOptions(ORIGIN, **options)).messages(row))


def one(envelope: str, row: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    (message,) = messages(envelope, row, **options)
    assert message.table == "sales.Orders"
    key, value = (text and json.loads(text) for text in (message.key, message.value))
    return key, value


@pytest.mark.parametrize("mod_type", ["INSERT", "DELETE"])
def test_a_value_alone_says_which_row_was_changed_even_if_it_was_deleted(mod_type: str) -> None:
    alone = {"key_in_value": True, "topic": "{table}", "is_value_alone": True}
    place = {"key": [7, "2026-01-01"], "topic": "sales.Orders"}
    after = None if mod_type == "DELETE" else ROW
    assert one("wrapped", record(mod_type), **alone)[1] == {"after": after, **place}
    assert one("row", record(mod_type), **alone)[1] == {**(after or {}), "__crdb__": place}
    assert one("key_only", record(mod_type), **alone)[1] == {"__crdb__": place}
    enriched = one("enriched", record(mod_type), **alone)[1]
    assert (enriched["after"], enriched["key"], enriched["topic"]) == (after, KEY, "sales.Orders")


@pytest.mark.parametrize("properties", [(), ("source", "schema")])
@pytest.mark.parametrize("envelope", envelopes())
def test_resolved_says_up_to_when_the_output_is_complete(
    envelope: str, properties: tuple[Any, ...]
) -> None:
    options = EnvelopeOptions(ORIGIN, enriched_properties=properties)
    made = envelopes()[envelope](options).resolved(1_769_850_000_123_456_500).as_json()
    assert (made.table, made.key) == (None, None)
    said = json.loads(made.value or "")
    resolved = {"resolved": "1769850000123456500.0000000000"}
    is_row = envelope in ("row", "key_only")
    # The schema belongs to changes only.
    assert said == ({"__crdb__": resolved} if is_row else resolved)


@pytest.mark.parametrize("envelope", envelopes())
def test_the_order_of_the_key_is_asked_for_where_messages_show_it(envelope: str) -> None:
    def shown(**options: Any) -> str:
        (message,) = messages(envelope, record(), enriched_properties=("source",), **options)
        return re.sub(r'"[a-z_]*ts_[a-z]+":\d+|"read_[a-z_]+":[^,}]+', "", f"{message}")

    assert shown() == shown()
    is_shown = shown() != shown(shapes={"sales.Orders": TableShape(("At", "Id"))})
    assert is_shown == envelopes()[envelope].has_key_order


def test_record_is_the_data_change_record_as_spanner_sent_it() -> None:
    row = record()
    (message,) = messages("record", row)
    timestamp_names = {"commit_timestamp": RFC, "low_watermark": RFC}
    assert json.loads(message.value or "") == row | timestamp_names
    assert message.key is None


def test_debezium_splits_the_sequence_of_a_stream_with_mutable_key_ranges() -> None:
    row = record(record_sequence="963d1af435fb3e79-0000000a")
    for schemas_enable in (False, True):
        _, value = one("debezium", row, schemas_enable=schemas_enable)
        payload = value["payload"] if schemas_enable else value
        assert payload["source"]["sequence"] == "10"
        assert payload["source"]["record_sequence_prefix"] == "963d1af435fb3e79"
    (source,) = (field for field in value["schema"]["fields"] if field["field"] == "source")
    prefix = {"type": "string", "optional": True, "field": "record_sequence_prefix"}
    assert prefix in source["fields"]
    assert "record_sequence_prefix" not in one("debezium", record())[1]["source"]


def test_flat_has_one_message_for_each_mod_with_the_row_before_and_after() -> None:
    mods = [
        {"keys": f'{{"Id":"{i}","At":"2026-01-01"}}', "new_values": "{}", "old_values": "{}"}
        for i in range(3)
    ]
    values = [json.loads(m.value or "") for m in messages("flat", record("UPDATE", *mods))]
    assert [(value["mod_number"], value["key"]["Id"]) for value in values] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    key, value = one("flat", record())
    assert key == value["key"] == KEY
    assert (value["before"], value["after"]) == ({**KEY, "Name": "old"}, ROW)
    assert (value["commit_timestamp"], value["transaction_tag"]) == (RFC, "nightly")
    assert one("flat", record("INSERT"))[1]["before"] is None
    assert one("flat", record("DELETE"))[1]["after"] is None


def test_datastream_has_the_metadata_of_its_events() -> None:
    key, value = one("datastream", record())
    assert key == KEY
    assert value["payload"] == ROW
    assert value["stream_name"] == "projects/p/instances/i/databases/d/changeStreams/Everything"
    assert value["object"] == "sales.Orders"
    assert value["read_method"] == "spanner-cdc"
    assert value["source_timestamp"] == RFC
    assert value["sort_keys"] == [1_769_850_000_123_456, "t1", "00000003", 0]
    assert value["source_metadata"] == {
        "database": "d",
        "schema": "sales",
        "table": "Orders",
        "primary_keys": ["Id", "At"],
        "is_deleted": False,
        "change_type": "UPDATE",
        "tx_id": "t1",
    }
    deleted = one("datastream", record("DELETE"))[1]
    assert deleted["source_metadata"]["is_deleted"]
    assert deleted["payload"] == {**KEY, "Name": "old"}


def test_datastreams_uuid_is_the_same_on_replay_and_no_other_events() -> None:
    mod = {"keys": KEYS, "new_values": "{}", "old_values": "{}"}
    rows = [
        record("UPDATE", mod, mod),
        record("UPDATE", mod, record_sequence="00000004"),
        record("UPDATE", mod, server_transaction_id="t2"),
    ]
    uuids = [
        [json.loads(m.value or "")["uuid"] for row in rows for m in messages(envelope, row)]
        for envelope in ("datastream",) * 2
    ]
    assert uuids[0] == uuids[1]
    assert len(set(uuids[0])) == 4


def test_a_row_of_an_initial_scan_differs_from_a_change() -> None:
    scanned = [
        record("INSERT", server_transaction_id="", table_name=table) for table in ("a.A", "b.B")
    ]
    values = [
        json.loads(message.value or "")
        for row in scanned
        for message in messages("datastream", row)
    ]
    assert [value["read_method"] for value in values] == ["spanner-backfill"] * 2
    assert len({value["uuid"] for value in values}) == 2
    (message,) = messages("debezium", scanned[0])
    value = json.loads(message.value or "")
    assert (value["op"], value["source"]["snapshot"]) == ("r", "true")


def test_datastreams_schema_key_changes_with_the_columns() -> None:
    first = one("datastream", record())[1]["schema_key"]
    assert one("datastream", record(server_transaction_id="t9"))[1]["schema_key"] == first
    assert one("datastream", record(column_types=COLUMNS[1:]))[1]["schema_key"] != first


def test_the_row_before_a_delete_is_there_with_diff() -> None:
    before = {**KEY, "Name": "old"}
    assert one("wrapped", record("DELETE"), diff=True)[1] == {"after": None, "before": before}


def test_the_row_before_is_whole_where_the_row_after_is() -> None:
    mod = {"keys": KEYS, "new_values": '{"Name":"new","More":1}', "old_values": '{"Name":"old"}'}
    whole = record("UPDATE", mod, value_capture_type="NEW_ROW_AND_OLD_VALUES")
    (message,) = messages("wrapped", whole, diff=True)
    assert json.loads(message.value or "")["before"] == {**KEY, "Name": "old", "More": 1}


def test_debezium_has_the_times_of_commit_and_of_processing() -> None:
    value = one("debezium", record())[1]
    assert value["source"]["ts_ns"] == 1_769_850_000_123_456_000
    assert value["ts_ns"] > value["source"]["ts_ns"]


def test_debezium_has_decimals_and_json_as_strings() -> None:
    columns = [
        {"name": name, "type": kind, "is_primary_key": name == "Id", "ordinal_position": place}
        for place, (name, kind) in enumerate(
            {
                "Id": '{"code":"INT64"}',
                "Fee": '{"code":"NUMERIC"}',
                "Extra": '{"code":"JSON"}',
                "Fees": '{"code":"ARRAY","array_element_type":{"code":"NUMERIC"}}',
                "Counts": '{"code":"ARRAY","array_element_type":{"code":"INT64"}}',
            }.items(),
            1,
        )
    ]
    new = {"Fee": "1.50", "Extra": '{"a":1}', "Fees": ["2.5"], "Counts": ["3", None]}
    mod = {"keys": '{"Id":"7"}', "new_values": json.dumps(new), "old_values": None}
    _, value = one("debezium", record("INSERT", mod, column_types=columns))
    assert value["after"] == {"Id": 7, **new, "Counts": [3, None]}


@pytest.mark.parametrize(
    ("code", "sent", "value"),
    [
        ('{"code":"INT64"}', '"9223372036854775807"', "9223372036854775807"),
        ('{"code":"INT64"}', "null", "null"),
        ('{"code":"BOOL"}', "true", "true"),
        ('{"code":"FLOAT64"}', "1.5", "1.5"),
        ('{"code":"FLOAT64"}', '"NaN"', '"NaN"'),
        ('{"code":"NUMERIC"}', '"1.50"', "1.50"),
        ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', '"NaN"', '"NaN"'),
        ('{"code":"JSON"}', r'"{\"a\":[1.0,null]}"', '{"a":[1.0,null]}'),
        ('{"code":"JSON"}', '"no JSON"', '"no JSON"'),
        ('{"code":"BYTES"}', '"AAEC"', '"AAEC"'),
        ('{"code":"ARRAY","array_element_type":{"code":"INT64"}}', '["1",null]', "[1,null]"),
        ('{"code":"UUID"}', '"0b8c"', '"0b8c"'),
        ('{"code":"SOMETHING_NEW"}', '{"x":["1"]}', '{"x":["1"]}'),
        ("no JSON", '"1"', '"1"'),
    ],
)
def test_a_value_is_written_as_its_type_says(code: str, sent: str, value: str) -> None:
    columns = [{"name": "Id", "type": '{"code":"INT64"}', "is_primary_key": True}]
    other = {"name": "X", "type": code, "is_primary_key": False}
    row = record(
        "INSERT",
        {"keys": '{"Id":"1"}', "new_values": f'{{"X":{sent}}}', "old_values": "{}"},
        column_types=[*columns, other],
    )
    (message,) = messages("wrapped", row)
    assert message.value == f'{{"after":{{"Id":1,"X":{value}}}}}'


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
def test_numbers_keep_their_value(decimal: Decimal, integer: int) -> None:
    columns = [
        {"name": "D", "type": '{"code":"NUMERIC"}'},
        {"name": "I", "type": '{"code":"INT64"}'},
    ]
    text = json.dumps({"D": f"{decimal:f}", "I": str(integer)})
    row = record("INSERT", {"keys": text, "new_values": "{}", "old_values": None})
    row["column_types"] = [c | {"is_primary_key": True} for c in columns]
    (message,) = messages("key_only", row)
    key = json.loads(message.key or "", parse_float=Decimal, parse_int=Decimal)
    assert key == [Decimal(f"{decimal:f}"), integer]


NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,350})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)
DOCUMENTS = st.recursive(
    st.sampled_from(["null", "true", '""', '"ü\\n"', "1.8e308", "-1e999"]) | NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(st.sampled_from("ab"), inner).map(
            lambda members: (
                "{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}"
            )
        )
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("annotation", ["", ',"type_annotation":"PG_JSONB"'])
@given(document=DOCUMENTS)
def test_a_json_column_is_json_with_all_its_digits(document: str, annotation: str) -> None:
    convert = json_converter(f'{{"code":"JSON"{annotation}}}')
    assert dumps({"Doc": convert(document)}) == f'{{"Doc":{document}}}'


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "01", "{'a':1}", "", "1.8e308 x"])
def test_what_is_no_json_in_a_json_column_stays_a_text(text: str) -> None:
    assert json_converter('{"code":"JSON"}')(text) == text


def test_a_column_without_a_type_stays_as_it_is_and_a_text_that_is_no_object_is_an_error() -> None:
    assert row_values('{"B":"1"}', [], json_converter) == {"B": "1"}
    assert row_values(None, [], json_converter) == {}
    with pytest.raises(ValueError, match="not a JSON object"):
        row_values("[1]", [], json_converter)
