"""Avro says what the JSON of the same envelope says, in types, and any version reads another."""

import base64
import io
import json
import re
import struct
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark import cloudpickle

from slackwater.spark_sink.avro.registered_messages import RegisteredMessages
from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import (
    TableSchema,
    key_schema,
    resolved_schema,
    value_schema,
)
from slackwater.spark_sink.avro.types import avro_converter, avro_name, avro_schema
from slackwater.spark_sink.avro.wire_format import (
    RegistryEncoder,
    SchemaIds,
    encode,
    for_avro,
    namespace,
)
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions, require_whole_rows
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.errors import PartialRowError, PublishError, SchemaRefusedError
from tests.support.schema_registry import reads, running_registry
from tests.unit.spark_sink.test_envelopes import COLUMNS, COMMIT, ORIGIN, record

TOPIC = "spanner.Orders"
WITHOUT_ROWS = {"record", "key_only"}
UUID = uuid.UUID("2f1d2c1e-5d8e-4a0f-9c57-0d6f3a4b7c21")
COMMITTED = datetime(2026, 1, 31, 9, 0, 0, 123456, UTC)
NEW_ROW = {"value_capture_type": "NEW_ROW_AND_OLD_VALUES"}


def made(name: str) -> Envelope:
    envelope = envelopes()[name]
    stamped = envelope.has_changefeed_options
    return envelope(
        EnvelopeOptions(
            ORIGIN, updated=stamped, mvcc_timestamp=stamped, enriched_properties=("source",)
        )
    )


def read(schema: Any, body: bytes | None) -> Any:
    if body is None:
        return None
    assert struct.unpack(">bI", body[:5]) == (0, 7)
    return fastavro.schemaless_reader(io.BytesIO(body[5:]), schema, None)


def said(envelope: str, row: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a record's messages, written and read again."""
    wrap = made(envelope)
    shape = TableSchema.of(TOPIC, row["table_name"], row["column_types"])
    encoder = RegistryEncoder(for_avro(wrap), {shape: SchemaIds(7, 7)}, by_table=False)
    schemas = key_schema(shape, TOPIC), value_schema(shape, TOPIC, wrap)
    for key, value in encoder.messages(row, TOPIC):
        yield read(schemas[0], key), read(schemas[1], value)


def plain(value: Any) -> Any:
    """As the JSON envelopes have it; what is NULL and what is not there are the same in Avro."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


NOW = {"read_timestamp", "read_at_timestamp", "ts_ms", "ts_us", "ts_ns"}


def without_now(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: without_now(v) for k, v in value.items() if k not in NOW}


@pytest.mark.parametrize("mod_type", ["INSERT", "UPDATE", "DELETE"])
@pytest.mark.parametrize("envelope", envelopes())
@pytest.mark.parametrize("sequence", ["00000003", "963d1af435fb3e79-0000000a"])
def test_avro_says_what_json_says(sequence: str, envelope: str, mod_type: str) -> None:
    row = record(mod_type, record_sequence=sequence, **NEW_ROW)
    expected = [
        tuple(None if text is None else json.loads(text) for text in (m.key, m.value))
        for m in made(envelope).messages(row)
    ]
    for (key, value), (json_key, json_value) in zip(said(envelope, row), expected, strict=True):
        if isinstance(json_key, list):
            assert list(plain(key).values()) == json_key
        elif envelope != "record":
            assert plain(key) == json_key
        assert without_now(plain(value)) == without_now(plain(json_value))


def test_columns_without_an_old_value_did_not_change() -> None:
    mod = {"keys": '{"Id":"7","At":"2026-01-01"}', "new_values": '{"Name":"new","Sum":"2.5"}'}
    columns = [*COLUMNS, {"name": "Sum", "type": '{"code":"NUMERIC"}', "is_primary_key": False}]
    row = record("UPDATE", {**mod, "old_values": '{"Name":"old"}'}, column_types=columns, **NEW_ROW)
    ((_, value),) = said("flat", row)
    key = {"Id": 7, "At": date(2026, 1, 1)}
    assert value["before"] == {**key, "Name": "old", "Sum": Decimal("2.5")}
    assert value["after"] == {**key, "Name": "new", "Sum": Decimal("2.5")}
    row = record("UPDATE", {**mod, "old_values": None}, column_types=columns)
    ((_, value),) = said("flat", row | {"value_capture_type": "NEW_ROW"})
    assert value["before"] is None


@pytest.mark.parametrize(
    ("kind", "json_value", "expected"),
    [
        ('{"code":"INT64"}', "-9223372036854775808", -(2**63)),
        ('{"code":"FLOAT64"}', "-Infinity", float("-inf")),
        ('{"code":"FLOAT32"}', 0.5, 0.5),
        ('{"code":"BOOL"}', False, False),
        ('{"code":"STRING"}', "é", "é"),
        ('{"code":"BYTES"}', "AP8=", b"\x00\xff"),
        ('{"code":"DATE"}', "1-01-01", date(1, 1, 1)),
        ('{"code":"TIMESTAMP"}', "2026-01-31T09:00:00.123456789Z", COMMITTED),
        ('{"code":"TIMESTAMP"}', "1-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ('{"code":"NUMERIC"}', f"-{'9' * 29}.{'9' * 9}", Decimal(f"-{'9' * 29}.{'9' * 9}")),
        ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', "NaN", "NaN"),
        ('{"code":"JSON"}', '{"a":[1.50]}', '{"a":[1.50]}'),
        ('{"code":"UUID"}', str(UUID), UUID),
        ('{"code":"INTERVAL"}', "P1Y2M", "P1Y2M"),
        ('{"code":"PROTO","proto_type_fqn":"a.B"}', "CgE=", "CgE="),
        ('{"code":"ARRAY","array_element_type":{"code":"INT64"}}', ["1", None], [1, None]),
        ("what there will be", {"x": 1}, '{"x":1}'),
    ],
)  # fmt: skip
def test_each_type_has_a_schema_that_holds_its_values(
    kind: str, json_value: Any, expected: Any
) -> None:
    schema = fastavro.parse_schema(["null", avro_schema(kind)])
    decoded = read(schema, encode(7, schema, avro_converter(kind)(json_value)))
    assert decoded == expected
    assert avro_converter(kind)(None) is None


@pytest.mark.parametrize(
    ("kind", "json_value"),
    [
        *(
            ("INT64", "x"),
            ("BOOL", "yes"),
            ("DATE", "2026-13-01"),
            ("BYTES", "%"),
            ("NUMERIC", "x"),
        ),
        ("TIMESTAMP", "2026-01-31T09:00:00"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named(kind: str, json_value: Any) -> None:
    with pytest.raises(ValueError, match=f"is not a value of type.*{kind}"):
        avro_converter(f'{{"code":"{kind}"}}')(json_value)


NAMES = st.sampled_from(["A", "B", "C d", "Ünï", "__x", "9"])
KINDS = st.sampled_from(["INT64", "STRING", "JSON", "TIMESTAMP"])


@given(
    st.dictionaries(NAMES, KINDS),
    st.dictionaries(NAMES, KINDS),
    st.sampled_from(sorted(envelopes())),
)
def test_any_version_reads_any_other_but_for_a_changed_type(
    old: dict[str, str], new: dict[str, str], envelope: str
) -> None:
    wrap = made(envelope)

    def schema(columns: dict[str, str]) -> Any:
        of = ((name, f'{{"code":"{kind}"}}', False) for name, kind in columns.items())
        value = value_schema(
            TableSchema(TOPIC, "Orders", (("Id", "INT64", True), *of)), TOPIC, wrap
        )
        return value or resolved_schema(TOPIC, wrap)

    fastavro.parse_schema(json.loads(json.dumps(schema(new))))
    texts = {"STRING", "JSON"}
    changed = any(
        old[name] != new[name] and {old[name], new[name]} != texts
        for name in old.keys() & new.keys()
    )
    expected = not changed or envelope in WITHOUT_ROWS
    assert reads(schema(new), schema(old)) is expected
    assert reads(schema(new), resolved_schema(TOPIC, wrap))
    assert reads(resolved_schema(TOPIC, wrap), schema(new))


NAMES = st.text(min_size=1, max_size=5) | st.text("_u02d-1", min_size=1, max_size=9)


@example("1", "_1")
@example("-", "_u002d_")
@example("_u002d-", "-u002d_")
@given(NAMES, NAMES)
def test_avro_takes_every_name_and_keeps_different_ones_apart(one: str, other: str) -> None:
    made = [avro_name(name) for name in (one, other)]
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) for name in made)
    assert (made[0] == made[1]) is (one == other)


def test_a_namespace_is_the_topic_and_where_tables_share_it_the_table() -> None:
    topic_namespace = namespace("my-db.sales.Orders", "sales.Orders", by_table=False)
    assert topic_namespace == "my_u002d_db.sales.Orders"
    assert namespace("changes", "sales.Orders", by_table=True) == "changes.sales.Orders"
    assert namespace("changes", "", by_table=True) == "changes"


@pytest.mark.parametrize("kind", ["OLD_AND_NEW_VALUES", "NEW_VALUES"])
def test_changes_without_the_whole_row_are_refused_where_the_envelope_has_rows(kind: str) -> None:
    for envelope in set(envelopes()) - WITHOUT_ROWS:
        with pytest.raises(PartialRowError, match="value_capture_type = 'NEW_ROW'"):
            require_whole_rows(kind, made(envelope), is_avro=True)
    for envelope in WITHOUT_ROWS:
        require_whole_rows(kind, made(envelope), is_avro=True)


def test_a_schema_is_registered_once_and_one_that_does_not_fit_is_refused() -> None:
    schema = {"type": "record", "name": "Value", "fields": [{"name": "A", "type": "long"}]}
    text = json.dumps(schema)
    other = json.dumps({**schema, "fields": [{"name": "A", "type": "string"}]})
    with running_registry() as (registry, url):
        client = SchemaRegistry(f"{url}/")
        client.require_answer()
        assert client.register("a/b-value", text) == client.register("a/b-value", text)
        assert registry.asked == 1
        assert list(registry.subjects) == ["a/b-value"]
        with pytest.raises(SchemaRefusedError, match="subject a/b-value: it answered 409"):
            client.register("a/b-value", other)
    with pytest.raises(PublishError, match="can't be reached"):
        client.register("a/b-value", other)
    assert COMMIT.tzinfo is not None


def test_a_registry_with_a_password_takes_it_from_the_url_and_it_is_in_no_message() -> None:
    with running_registry() as (registry, url):
        registry.authorization = f"Basic {base64.b64encode(b'ann:of-ann').decode()}"
        host = url.partition("://")[2]
        SchemaRegistry(f"http://ann:of-ann@{host}").require_answer()
        with pytest.raises(SchemaRefusedError, match="it answered 401") as refused:
            SchemaRegistry(f"http://ann:wrong@{host}").require_answer()
        registry.is_away = True
        with pytest.raises(PublishError, match="can't be reached") as away:
            SchemaRegistry(f"http://ann:wrong@{host}").require_answer()
    assert "wrong" not in f"{refused.value} {away.value}"


def test_a_worker_caches_the_schemas_of_the_last_epoch() -> None:
    """Each epoch's envelope comes to it pickled; another one would have them parsed again."""
    envelope = for_avro(made("flat"))
    one, other = (cloudpickle.loads(cloudpickle.dumps(envelope)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("envelope", ["wrapped", "enriched", "debezium", "row"])
def test_resolved_messages_leave_the_latest_schema_of_a_subject_alone(envelope: str) -> None:
    """Otherwise the registry checks the next schema against one without columns."""
    made = envelopes()[envelope](EnvelopeOptions(ORIGIN))
    with running_registry() as (registry, url):
        schema = value_schema(TableSchema.of("t", "T", COLUMNS), "t", made)
        SchemaRegistry(url).register("t-value", json.dumps(schema))
        # As after a restart: this client has registered nothing.
        messages = RegisteredMessages(made, SchemaRegistry(url), by_table=False)
        value = made.resolved(1_769_850_000_123_456_500).value
        message = messages.resolved("t", value)
        assert registry.subjects == {"t-value": [1]}
        assert struct.unpack(">bI", message[:5]) == (0, 1)
        # read() asks for the number of its own tests.
        body = read(schema, message.replace(b"\0\0\0\1", b"\0\0\0\7", 1))
        said = body["__crdb__"] if envelope == "row" else body
        assert said["resolved"] == "1769850000123456500.0000000000"


def test_resolved_messages_have_a_schema_where_no_message_has_a_value() -> None:
    made = envelopes()["key_only"](EnvelopeOptions(ORIGIN))
    with running_registry() as (registry, url):
        messages = RegisteredMessages(made, SchemaRegistry(url), by_table=False)
        assert messages.resolved("t", made.resolved(1).value)
        assert list(registry.subjects) == ["t-value"]
