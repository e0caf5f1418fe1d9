"""CockroachDB's documented messages and ours of the same change read the same.

The parser is written for the messages in the documentation of CockroachDB's changefeeds and in its
encoder's own tests, and refuses what those do not have.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, Origin, dumps
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.envelopes.values import null_object_converter
from slackwater.spark_sink.sql.table_shape import TableShape
from tests.support.row_changes import BIKE, VEHICLE_KEY, messages_of, record, vehicle

CHANGEFEED = Origin("changefeed", "p", "i", "d", "s")
METADATA = ("updated", "mvcc_timestamp", "key", "topic")
RIDE_TYPES = {"id": "STRING", "city": "STRING", "start_address": "STRING", "revenue": "NUMERIC"}
RIDE = {
    "id": "f6c02fe0-a4e0-476d-a3b7-91934d15dce2",
    "city": "seattle",
    "start_address": "5 Michael Field",
    "revenue": "25.00",
}
DOG_TYPES = {"id": "INT64", "name": "STRING"}
PETEE = {"id": 1, "name": "Petee"}


@dataclass(frozen=True)
class ChangefeedMessage:
    """What a consumer of a changefeed takes from a message.

    Attributes:
        key: the key's columns, in the key's order.
        rows: the row after the change and, with diff, before it; {} without a value.
        metadata: what options add.
    """

    key: Sequence[Any]
    rows: Mapping[str, Any]
    metadata: Mapping[str, Any]


def read_changefeed(envelope: str, key: str | None, value: str | None) -> ChangefeedMessage:
    """Read a message of an envelope; the key is a list."""
    columns = json.loads(key or "")
    assert isinstance(columns, list)
    if value is None:
        assert envelope in ("row", "key_only"), "only these have messages without a value"
        return ChangefeedMessage(columns, {}, {})
    fields = json.loads(value, parse_float=Decimal)
    apart = fields if envelope == "wrapped" else fields.pop("__crdb__", {})
    metadata = {name: apart.pop(name) for name in METADATA if name in apart}
    if envelope == "wrapped":
        assert fields.keys() <= {"after", "before"}
        assert "after" in fields
        return ChangefeedMessage(columns, fields, metadata)
    assert not apart
    return ChangefeedMessage(columns, {"after": fields}, metadata)


@dataclass(frozen=True)
class Documented:
    """A documented message: envelope, key and value, and the change and the options behind it."""

    envelope: str
    key: str
    value: str | None
    change: Mapping[str, Any]
    options: Mapping[str, Any]


def dog(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    return record("office_dogs", DOG_TYPES, ["id"], before, after)


VEHICLE_MESSAGE_KEY = '["washington dc", "298cc7a0-de6b-4659-ae57-eaa2de9d99c3"]'
UPDATED = "1532377312562986000.0000000000"
AT_UPDATED = {"commit_timestamp": datetime(2018, 7, 23, 20, 21, 52, 562986, UTC)}
DOCUMENTED_MESSAGES = {
    "an insert": Documented(
        "wrapped", "[1]", '{"after": {"id": 1, "name": "Petee"}}', dog(None, PETEE), {}
    ),
    "a delete": Documented("wrapped", "[1]", '{"after": null}', dog(PETEE, None), {}),
    "updated": Documented(
        "wrapped",
        "[1]",
        f'{{"after": {{"id": 1, "name": "Petee H"}}, "updated": "{UPDATED}"}}',
        dog(PETEE, PETEE | {"name": "Petee H"}) | AT_UPDATED,
        {"updated": True},
    ),
    "mvcc_timestamp": Documented(
        "wrapped",
        "[1]",
        f'{{"after": {{"id": 1, "name": "Petee"}}, "mvcc_timestamp": "{UPDATED}"}}',
        dog(None, PETEE) | AT_UPDATED,
        {"mvcc_timestamp": True},
    ),
    "key_in_value": Documented(
        "wrapped",
        VEHICLE_MESSAGE_KEY,
        f'{{"after": {json.dumps(BIKE)}, "key": {VEHICLE_MESSAGE_KEY}}}',
        vehicle(BIKE),
        {"key_in_value": True, "shapes": VEHICLE_KEY},
    ),
    "topic_in_value": Documented(
        "wrapped",
        "[1]",
        '{"after": {"id": 1, "name": "Petee"}, "key": [1], "topic": "office_dogs"}',
        dog(None, PETEE),
        {"key_in_value": True, "topic": "{table}"},
    ),
    "diff": Documented(
        "wrapped",
        '["seattle", "f6c02fe0-a4e0-476d-a3b7-91934d15dce2"]',
        json.dumps({"after": RIDE | {"start_address": "2 Michael Field"}, "before": RIDE}).replace(
            '"25.00"', "25.00"
        ),
        record(
            "rides",
            RIDE_TYPES,
            ["id", "city"],
            {name: RIDE[name] for name in ("id", "city", "start_address")},
            RIDE | {"start_address": "2 Michael Field"},
            value_capture_type="NEW_ROW_AND_OLD_VALUES",
        ),
        {"diff": True, "shapes": {"rides": TableShape(("city", "id"))}},
    ),
    "diff of an insert": Documented(
        "wrapped",
        "[1]",
        '{"after": {"id": 1, "name": "Petee"}, "before": null}',
        dog(None, PETEE),
        {"diff": True},
    ),
    "row": Documented(
        "row",
        VEHICLE_MESSAGE_KEY,
        json.dumps(BIKE),
        vehicle(BIKE),
        {"shapes": VEHICLE_KEY},
    ),
    "row of a delete": Documented("row", "[1]", None, dog(PETEE, None), {}),
    "row of a delete with updated": Documented(
        "row", "[1]", None, dog(PETEE, None), {"updated": True}
    ),
    "row with updated": Documented(
        "row",
        "[1]",
        f'{{"__crdb__": {{"updated": "{UPDATED}"}}, "id": 1, "name": "Petee H"}}',
        dog(PETEE, PETEE | {"name": "Petee H"}) | AT_UPDATED,
        {"updated": True},
    ),
    "key_only": Documented(
        "key_only", VEHICLE_MESSAGE_KEY, None, vehicle(BIKE), {"shapes": VEHICLE_KEY}
    ),
    "key_only of a delete": Documented("key_only", "[1]", None, dog(PETEE, None), {}),
}


@pytest.mark.parametrize("name", DOCUMENTED_MESSAGES)
def test_cockroachdbs_documented_messages_read_as_ours_of_the_same_change(name: str) -> None:
    documented = DOCUMENTED_MESSAGES[name]
    (message,) = messages_of(
        documented.envelope, documented.change, CHANGEFEED, **documented.options
    )
    assert read_changefeed(documented.envelope, message.key, message.value) == read_changefeed(
        documented.envelope, documented.key, documented.value
    )


NULLS = {"id": "INT64", "data": "JSON"}


@pytest.mark.parametrize(
    ("sent", "documented"),
    [
        (None, '{"after": {"data": null, "id": 1}, "key": [1]}'),
        ("null", '{"after": {"data": {"__crdb_json_null__": true}, "id": 1}, "key": [1]}'),
    ],
)
@pytest.mark.parametrize("envelope", ["wrapped", "row", "enriched"])
def test_a_json_null_as_an_object_is_no_null_of_sql(
    envelope: str, sent: str | None, documented: str
) -> None:
    change = record("test", NULLS, ["id"], None, {"id": 1, "data": sent})
    (message,) = messages_of(
        envelope, change, key_in_value=True, encode_json_value_null_as_object=True
    )
    expected, value = json.loads(documented), json.loads(message.value or "")
    if envelope == "row":
        assert value == {**expected["after"], "__crdb__": {"key": [1]}}
    else:
        assert value["after"] == expected["after"]
    if sent is not None:
        (plain,) = messages_of("wrapped", change)
        assert json.loads(plain.value or "") == {"after": {"data": None, "id": 1}}


def test_a_json_null_in_an_array_is_an_object_too() -> None:
    convert = null_object_converter('{"code":"ARRAY","array_element_type":{"code":"JSON"}}')
    assert dumps(convert([None, "null", '{"a":null}'])) == (
        '[null,{"__crdb_json_null__":true},{"a":null}]'
    )


def test_a_key_whose_order_is_not_known_has_the_order_of_the_columns() -> None:
    (message,) = messages_of("key_only", vehicle(BIKE), CHANGEFEED)
    assert json.loads(message.key or "") == [BIKE["id"], BIKE["city"]]
    # A key of other columns is another table's of the same name.
    other = {"vehicles": TableShape(("city", "number"))}
    (message,) = messages_of("key_only", vehicle(BIKE), CHANGEFEED, shapes=other)
    assert json.loads(message.key or "") == [BIKE["id"], BIKE["city"]]


WITH_HEADERS = {"id": "INT64", "name": "STRING", "meta": "JSON"}


@pytest.mark.parametrize("envelope", ["wrapped", "row", "enriched"])
@pytest.mark.parametrize("deletes", [False, True])
def test_the_members_of_a_column_are_headers_and_not_in_the_row(
    envelope: str, deletes: bool
) -> None:
    row = {"id": 7, "name": "Ada", "meta": '{"trace": "a1", "hops": 2, "none": null}'}
    change = record("T", WITH_HEADERS, ["id"], row, None if deletes else row)
    options = EnvelopeOptions(
        CHANGEFEED,
        enriched_properties=("schema",),
        diff=True,
        headers_json_column_name="meta",
        extra_headers={"app": "shop"},
    )
    made = envelopes()[envelope](options)
    assert made.has_headers
    assert made.headers(change) == {"app": "shop", "trace": "a1", "hops": "2"}
    # A message with a low watermark is of no row.
    assert made.headers(None) == {}
    (message,) = made.messages(change)
    assert "meta" not in (message.value or "")
    assert "a1" not in (message.value or "")
    assert (message.value is None) == (deletes and envelope == "row")


@pytest.mark.parametrize("meta", [None, "[1]", "null", '"text"'])
def test_a_column_without_an_object_has_no_headers(meta: str | None) -> None:
    change = record("T", WITH_HEADERS, ["id"], None, {"id": 7, "name": "Ada", "meta": meta})
    made = envelopes()["row"](EnvelopeOptions(CHANGEFEED, headers_json_column_name="meta"))
    assert made.headers(change) == {}


@pytest.mark.parametrize(
    ("meta", "headers"),
    [
        ('{"n": 1e400, "m": 1.10}', {"n": "1e400", "m": "1.10"}),
        ('{"n": 123456789012345678901234567890}', {"n": "123456789012345678901234567890"}),
        ('{"deep": {"n": 1.10}}', {"deep": '{"n":1.10}'}),
        # The row has none any more.
        (None, {}),
    ],
)
def test_headers_have_all_digits_and_are_those_of_the_row_after_the_change(
    meta: str | None, headers: dict[str, str]
) -> None:
    before = {"id": 7, "name": "Ada", "meta": '{"trace": "old"}'}
    change = record("T", WITH_HEADERS, ["id"], before, {**before, "meta": meta})
    made = envelopes()["row"](EnvelopeOptions(CHANGEFEED, headers_json_column_name="meta"))
    assert made.headers(change) == headers


@pytest.mark.parametrize("envelope", sorted(envelopes()))
def test_extra_headers_are_on_each_change_and_on_no_resolved_message(envelope: str) -> None:
    made = envelopes()[envelope](EnvelopeOptions(CHANGEFEED, extra_headers={"app": "shop"}))
    assert made.has_headers
    assert made.headers(vehicle(BIKE)) == {"app": "shop"}
    assert made.headers(None) == {}
