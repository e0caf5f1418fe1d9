"""A schema that is there fits messages, or says what it lacks, or what no revision can change."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.avro.revisions import Fit, fit_of
from slackwater.spark_sink.avro.schemas import TableSchema, value_schema
from slackwater.spark_sink.avro.wire_format import for_avro
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.sql.columns import Column
from tests.support.schema_registry import reads
from tests.unit.spark_sink.test_envelopes import ORIGIN

TOPIC = "spanner-Orders"
COLUMNS = st.dictionaries(st.sampled_from("ABCDEF"), st.just("STRING") | st.just("ARRAY<INT64>"))


def envelope(name: str, **options: Any) -> Envelope:
    """Return an envelope whose values stand alone, as in Pub/Sub."""
    alone = EnvelopeOptions(ORIGIN, key_in_value=True, is_value_alone=True, **options)
    return for_avro(envelopes()[name](alone))


def schema(columns: dict[str, str], name: str = "wrapped", **options: Any) -> Any:
    of = [Column("Id", "INT64", is_key=True), *(Column(c, columns[c], False) for c in columns)]
    table_schema = TableSchema.of_columns(TOPIC, "Orders", of)
    return value_schema(table_schema, "spanner_Orders", envelope(name, **options))


def fit(existing: Any, *needed: Any) -> Fit:
    return fit_of(json.dumps(existing), needed)


@given(COLUMNS, COLUMNS, st.sampled_from(sorted(envelopes())))
def test_a_revision_has_the_columns_of_all_versions_of_a_table(
    old: dict[str, str], new: dict[str, str], name: str
) -> None:
    new = {column: old.get(column, kind) for column, kind in new.items()}
    former, latest = schema(old, name), schema(new, name)
    looked = fit(former, latest)
    has_rows = name not in ("record", "key_only")
    assert looked.is_whole is (not has_rows or new.keys() <= old.keys())
    assert looked.conflicts == ()
    revision = json.loads(looked.definition)
    assert fit(revision, latest, former).is_whole
    assert "__" not in looked.definition.replace("__crdb__", "")
    # As Pub/Sub requires of a revision.
    one, other = map(fastavro.parse_schema, (revision, former))
    assert reads(one, other)
    assert reads(other, one)


def test_a_column_that_lacks_is_named_once_for_a_record_that_stands_twice() -> None:
    looked = fit(schema({"A": "STRING"}, "flat"), schema({"B": "DATE"}, "flat"))
    assert looked.lacking == ("before.B",)
    after = {"Id": 1, "A": None, "B": None}
    out = io.BytesIO()
    revision: Any = fastavro.parse_schema(json.loads(looked.definition))
    fastavro.schemaless_writer(out, revision, {"after": after})
    out.seek(0)
    value: Any = fastavro.schemaless_reader(out, revision, None)
    assert value["after"] == after


@pytest.mark.parametrize(
    ("existing", "reason"),
    [
        (schema({"A": "INT64"}), "after.A is null or long, not string"),
        (schema({"A": "ARRAY<STRING>"}), "after.A is null or array, not string"),
        ({"type": "string"}, "the message is string, not record"),
        (["null", "string"], "the message is null or string, not record"),
    ],
)
def test_what_no_revision_can_change_is_named(existing: Any, reason: str) -> None:
    assert fit(existing, schema({"A": "STRING"})).conflicts == (reason,)


def test_numbers_of_another_scale_and_items_of_another_type_conflict() -> None:
    needed = schema({"Sum": "NUMERIC", "Ids": "ARRAY<INT64>"}, "row")
    existing = json.loads(json.dumps(needed).replace('"scale": 9', '"scale": 2'))
    items = json.loads(json.dumps(existing).replace('"items": ["null", "long"]', '"items": "int"'))
    assert fit(existing, needed).conflicts == ("Sum is null or decimal, not decimal",)
    assert fit(items, needed).conflicts[1:] == ("Ids is int, not null", "Ids is int, not long")


def test_a_schema_of_ones_own_fits_if_it_has_every_field() -> None:
    """Its order, names of records and further fields are its own."""
    own = schema({"A": "STRING", "B": "DATE"})
    own["namespace"], own["doc"] = "com.example", "of ours"
    own["fields"][0]["type"][1]["name"] = "Order"
    own["fields"].reverse()
    own["fields"].append({"name": "Region", "type": "string", "default": "eu"})
    assert fit(own, schema({"B": "DATE"})).is_whole
    own["fields"][-1].pop("default")
    assert fit(own, schema({"B": "DATE"})).conflicts == ("Region has no default",)


def test_a_value_that_stands_alone_has_its_key_once() -> None:
    with_key = {name for name in envelopes() if "Key" in json.dumps(schema({}, name))}
    assert with_key == {"enriched", "flat", "key_only", "row", "wrapped"}
    for name in with_key:
        value = schema({}, name)
        [metadata] = [f for f in value["fields"] if f["name"] == "__crdb__"] or [value]
        fields = metadata["fields"] if "fields" in metadata else metadata["type"][1]["fields"]
        assert [field["name"] for field in fields].count("key") == 1


def test_a_schema_of_another_envelope_does_not_fit() -> None:
    looked = fit(schema({"A": "STRING"}), schema({"A": "STRING"}, diff=True))
    assert looked.conflicts == ("before is missing",)
    looked = fit(schema({"A": "STRING"}), schema({"A": "STRING"}, "row"))
    assert looked.conflicts == ("__crdb__ is missing",)


def test_columns_of_both_dialects_have_the_schema_of_their_records() -> None:
    types = {
        "INT64": '{"code":"INT64"}',
        "STRING(MAX)": '{"code":"STRING"}',
        "NUMERIC": '{"code":"NUMERIC"}',
        "ARRAY<FLOAT32>(vector_length=>2)": (
            '{"code":"ARRAY","array_element_type":{"code":"FLOAT32"}}'
        ),
        "UUID": '{"code":"UUID"}',
        "JSON": '{"code":"JSON"}',
        "INTERVAL": '{"code":"INTERVAL"}',
        "PROTO<a.B>": '{"code":"PROTO","proto_type_fqn":"a.B"}',
        "bigint": '{"code":"INT64"}',
        "boolean": '{"code":"BOOL"}',
        "double precision": '{"code":"FLOAT64"}',
        "character varying(20)": '{"code":"STRING"}',
        "numeric": '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}',
        "jsonb": '{"code":"JSON","type_annotation":"PG_JSONB"}',
        "bytea": '{"code":"BYTES"}',
        "timestamp with time zone": '{"code":"TIMESTAMP"}',
        "date[]": '{"code":"ARRAY","array_element_type":{"code":"DATE"}}',
        "uuid": '{"code":"UUID"}',
    }
    for spanner_type, type_json in types.items():
        record = [{"name": "A", "type": type_json, "is_primary_key": False}]
        of_record, of_columns = (
            value_schema(each, "t", envelope("row"))
            for each in (
                TableSchema.of("t", "T", record),
                TableSchema.of_columns("t", "T", [Column("A", spanner_type, is_key=False)]),
            )
        )
        assert of_columns == of_record, spanner_type
