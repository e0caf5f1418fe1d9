"""The settings of the kinds of sinks, and what goes with which."""

from os.path import abspath
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.commands.sql_views import views
from slackwater.config.settings import Settings
from slackwater.config.sinks import make_sink
from slackwater.errors import SettingsError
from slackwater.spark_sink.errors import ColumnNameError, PartialRowError, SinkError
from slackwater.spark_sink.output.maintenance import MaintenancePolicy
from slackwater.spark_sink.sinks.changelog import ChangelogSettings, FileChangelog
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from slackwater.spark_sink.sinks.mirrors import MirrorSettings
from slackwater.spark_sink.sinks.registry import sink_kinds, spark_confs
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.spark_sink.sql.columns import Column, columns_from_schema
from tests.support.row_changes import ORIGIN
from tests.unit.config.test_settings import MINIMAL, load, problems

KAFKA = {
    "kind": "kafka",
    "checkpoint": "out/checkpoint",
    "options": {"kafka.bootstrap.servers": "broker:9092"},
}
AVRO = {"format": "avro", "confluent_schema_registry": "http://registry:8081"}
ENRICHED = {"envelope": "enriched"}
STRICT_VALUES = {"envelope": "debezium", "strict": True, "topic": "shop.{table}"}
STRICT = {**KAFKA, **STRICT_VALUES}
PUBSUB = {"kind": "pubsub", "project": "shop", "checkpoint": "out/checkpoint"}


def text(sink: dict[str, Any], **source: Any) -> str:
    changed = {**MINIMAL, "source": MINIMAL["source"] | source, "sink": sink}
    return yaml.safe_dump(changed)


def loaded(tmp_path: Path, sink: dict[str, Any], **source: Any) -> Settings:
    return load(tmp_path, text(sink, **source))


def test_a_mirror_is_a_delta_table_that_starts_with_an_initial_scan(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {**MINIMAL["sink"], "kind": "mirror"})
    assert isinstance(settings.sink, MirrorSettings)
    assert (settings.sink.format, settings.sink.deletes, settings.initial_scan) == (
        "delta",
        "apply",
        "yes",
    )
    # What YAML reads as a boolean is meant as the word.
    other = loaded(tmp_path, {**MINIMAL["sink"], "kind": "mirror"}, initial_scan=False)
    assert other.initial_scan == "no"


def test_new_tables_are_read_if_those_of_the_beginning_are(tmp_path: Path) -> None:
    mirror = {**MINIMAL["sink"], "kind": "mirror"}
    assert loaded(tmp_path, mirror).new_tables == "scan"
    assert loaded(tmp_path, mirror, initial_scan=False).new_tables == "changes_only"
    assert loaded(tmp_path, mirror, new_tables="changes_only").new_tables == "changes_only"
    assert loaded(tmp_path, MINIMAL["sink"]).new_tables == "changes_only"
    assert loaded(tmp_path, MINIMAL["sink"], new_tables="scan").new_tables == "scan"
    said = problems(tmp_path, text(KAFKA, new_tables="scan"))
    assert "source.new_tables scan does not go with sink.kind kafka" in said


def test_typed_changelogs_are_delta_tables_of_changes(tmp_path: Path) -> None:
    sink = {**MINIMAL["sink"], "kind": "changelogs", "compact_every": "1h"}
    settings = loaded(tmp_path, {**sink, "bad_records": "dead_letter"})
    assert (settings.sink.format, settings.initial_scan) == ("delta", "no")
    assert loaded(tmp_path, {**sink, "format": "iceberg"}).sink.format == "iceberg"


BIGQUERY = {
    "format": "bigquery",
    "path": "bq://shop-prod/lake",
    "checkpoint": "gs://bucket/checkpoint",
}


def test_in_bigquery_epochs_are_committed_beside_the_checkpoint(tmp_path: Path) -> None:
    sink = loaded(tmp_path, BIGQUERY).sink
    assert sink.place_path == "gs://bucket/checkpoint-log"
    assert sink.is_in_store
    on_disk = loaded(tmp_path, BIGQUERY | {"checkpoint": "out/checkpoint"}).sink
    assert on_disk.place_path == abspath("out/checkpoint-log")
    assert not on_disk.is_in_store


@pytest.mark.parametrize("kind", ["changelogs", "mirror"])
def test_tables_in_bigquery_have_their_log_beside_the_checkpoint(tmp_path: Path, kind: str) -> None:
    sink = loaded(tmp_path, BIGQUERY | {"kind": kind}).sink
    assert sink.place_path == f"{BIGQUERY['checkpoint']}-log"


def test_options_of_bigquery_go_with_those_of_the_store_of_the_checkpoint(tmp_path: Path) -> None:
    options = {"bigquery.endpoint": "https://bigquery.example", "google_skip_signature": "true"}
    sink = loaded(tmp_path, BIGQUERY | {"storage_options": options}).sink
    assert sink.place_options == {"google_skip_signature": "true"}


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"path": "bq://shop-prod"}, "bq://shop-prod, which is no address of BigQuery's"),
        ({"path": "bq://shop-prod/lake/a/b"}, "which is no address of BigQuery's"),
        ({"path": "out/changes"}, "format bigquery goes with a path such as bq://"),
        ({"format": "parquet"}, "format bigquery goes with a path such as bq://"),
        ({"envelope": "wrapped"}, "format bigquery has the envelope record only"),
        ({"compact_every": "1h"}, "compact_every does not go with format bigquery"),
        ({"partition_by": ["date"]}, "partition_by does not go with format bigquery"),
        ({"kind": "mirror", "path": "bq://shop-prod/lake/a"}, "path is a dataset, bq://"),
        ({"kind": "mirror", "format": "delta"}, "format bigquery goes with a path such as bq://"),
        (
            {"kind": "changelogs", "table_properties": {"a": "b"}},
            "a: in BigQuery there are labels.NAME and cluster_by, partition_by, partition_exp",
        ),
        (
            {"kind": "mirror", "table_properties": {"partition_by": "DAY"}},
            "partition_by: in BigQuery there are labels.NAME and cluster_by",
        ),
        (
            {"kind": "mirror", "table_properties": {"cluster_by": "A, B, C, D, E"}},
            "cluster_by: BigQuery takes 4 columns",
        ),
        (
            {"kind": "changelogs", "table_properties": {"partition_by": "WEEK"}},
            "partition_by is WEEK, and not one of HOUR, DAY, MONTH, YEAR",
        ),
        (
            {"kind": "changelogs", "table_properties": {"partition_expiration_days": "0"}},
            "partition_expiration_days is 0, and not a number of days",
        ),
        (
            {"kind": "mirror", "consistency": "table", "deletes": "mark"},
            "consistency: table goes with format bigquery and deletes: apply only",
        ),
        (
            {"kind": "mirror", "max_staleness": "15m"},
            "max_staleness goes with consistency: table only",
        ),
        (
            {"checkpoint": "out/checkpoint", "storage_options": {"aws_region": "x"}},
            "storage_options goes with a path in an object store",
        ),
    ],
)
def test_what_does_not_go_with_bigquery_is_named(
    tmp_path: Path, sink: dict[str, Any], problem: str
) -> None:
    assert problem in problems(tmp_path, text(BIGQUERY | sink))


POSTGRESQL = {
    "kind": "mirror",
    "format": "postgresql",
    "path": "postgresql://user@host:5432/shop?sslmode=require",
    "checkpoint": "out/checkpoint",
}


def test_mirrors_in_postgresql_are_staged_beside_the_checkpoint(tmp_path: Path) -> None:
    sink = loaded(tmp_path, POSTGRESQL).sink
    assert sink.place_path == abspath("out/checkpoint-log")
    assert sink.path == POSTGRESQL["path"]


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"kind": "changelog"}, "'postgresql' is not a format of kind changelog"),
        ({"path": "out/mirrors"}, "format postgresql goes with a path such as postgresql://user@"),
        ({"format": "delta"}, "format postgresql goes with a path such as postgresql://user@"),
        ({"path": "bq://shop/lake"}, "format postgresql goes with a path such as postgresql://"),
        ({"path": "postgresql://host"}, "which names no database of PostgreSQL's"),
        ({"keep_versions": "1h"}, "keep_versions does not go with format postgresql"),
        ({"consistency": "table"}, "consistency: table goes with format bigquery"),
        ({"table_properties": {"partition_by": "DAY"}}, "partition_by goes with changelogs only"),
        (
            {"kind": "changelogs", "table_properties": {"partition_by": "WEEK"}},
            "table_properties: partition_by is WEEK",
        ),
    ],
)
def test_what_does_not_go_with_postgresql_is_named(
    tmp_path: Path, sink: dict[str, Any], problem: str
) -> None:
    assert problem in problems(tmp_path, text(POSTGRESQL | sink))


@pytest.mark.parametrize(
    ("table", "column", "says"),
    [
        ("T" * 64, "Name", "names of 63 bytes at most"),
        ("T", "N" * 64, "postgresql does not take that name"),
        ("T", "xmin", "postgresql does not take that name"),
    ],
)
def test_a_name_that_postgresql_would_cut_or_has_is_refused(
    tmp_path: Path, table: str, column: str, says: str
) -> None:
    columns = [Column("Id", "INT64", True), Column(column, "STRING(MAX)", False)]
    sink = loaded(tmp_path, POSTGRESQL).sink
    sink.check_tables({"T" * 63: [columns[0]], "archive.Notes": [columns[0]]})
    with pytest.raises(SinkError, match=says):
        sink.check_tables({table: columns})


def test_views_for_spark_are_not_made_over_bigquery(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"sink\.format bigquery: the views are Spark's"):
        next(views(loaded(tmp_path, BIGQUERY), ()))


HOUR_S, DAY_S = 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("sink", "policy"),
    [
        ({"kind": "mirror"}, MaintenancePolicy(HOUR_S, HOUR_S)),
        ({"kind": "mirror", "format": "iceberg"}, MaintenancePolicy(HOUR_S, HOUR_S)),
        ({"kind": "changelogs"}, MaintenancePolicy(HOUR_S, DAY_S)),
        ({"format": "delta"}, MaintenancePolicy(HOUR_S, DAY_S)),
        ({"format": "iceberg"}, MaintenancePolicy(HOUR_S, HOUR_S)),
        ({"format": "delta", "keep_versions": "1h"}, MaintenancePolicy(HOUR_S, HOUR_S)),
        ({"format": "delta", "keep_versions": "never"}, MaintenancePolicy(HOUR_S, None)),
        ({"kind": "mirror", "compact_every": "never"}, MaintenancePolicy(None, HOUR_S)),
    ],
)
def test_tables_are_maintained_unless_the_settings_say_otherwise(
    tmp_path: Path, sink: dict[str, Any], policy: MaintenancePolicy
) -> None:
    settings = loaded(tmp_path, {**MINIMAL["sink"], **sink}).sink
    assert isinstance(settings, TableSettings)
    assert settings.maintenance_policy == policy


def test_epochs_are_compacted_only_if_the_settings_say_so(tmp_path: Path) -> None:
    def compacts(**sink: str) -> bool:
        settings = loaded(tmp_path, {**MINIMAL["sink"], **sink}).sink
        assert isinstance(settings, ChangelogSettings)
        return settings.compacts_epochs

    assert not compacts()
    assert not compacts(compact_every="never")
    assert compacts(compact_every="1h")
    assert compacts(compact_every="1h", path="file:///out/changes")
    # A table's readers need not know.
    assert not compacts(compact_every="1h", format="delta")
    for wrong in ({"compact_every": "59s"}, {"keep_versions": "9m"}, {"keep_versions": "ever"}):
        with pytest.raises(SettingsError, match=r"sink\.(compact_every|keep_versions)"):
            compacts(**wrong)
    assert compacts(compact_every="1h", path="s3://bucket/changes")
    with pytest.raises(SettingsError, match="does not go with partition_by in an object store"):
        compacts(compact_every="1h", path="s3://bucket/changes", partition_by="table_name")


def test_a_changelog_has_changes_as_records_by_default(
    tmp_path: Path,
) -> None:
    settings = loaded(tmp_path, MINIMAL["sink"])
    assert isinstance(settings.sink, ChangelogSettings)
    assert (settings.initial_scan, settings.sink.envelope) == ("no", "record")
    assert loaded(tmp_path, MINIMAL["sink"], initial_scan=True).initial_scan == "yes"
    assert loaded(tmp_path, MINIMAL["sink"], initial_scan="only").initial_scan == "only"


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("out", abspath("out")),
        ("./out/../in/", abspath("in")),
        ("/data/out", "/data/out"),
        ("file:///data/out", "file:///data/out"),
        ("s3://bucket/out", "s3://bucket/out"),
    ],
)
def test_a_path_of_this_machine_is_absolute_as_soon_as_it_is_read(
    path: str, absolute: str, tmp_path: Path
) -> None:
    sink = loaded(tmp_path, {"path": path, "checkpoint": f"{path}-checkpoint"}).sink
    assert sink.path == absolute


def test_kafka_has_a_topic_a_table_and_needs_no_path(tmp_path: Path) -> None:
    sink = loaded(tmp_path, KAFKA).sink
    assert isinstance(sink, KafkaSettings)
    assert (sink.topic, sink.envelope) == ("{table}", "wrapped")
    assert sink.path == abspath("out/checkpoint-staging")
    own = {"resolved": "10s", "envelope": "debezium", "schemas_enable": True}
    sink = loaded(tmp_path, KAFKA | own).sink
    assert own | {"resolved": 10_000} == sink.model_dump(include=set(own))


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (
            {"format": "csv"},
            "'csv' is not a format of kind changelog; known: parquet, json, orc",
        ),
        ({"kind": "mirror", "format": "parquet"}, "'parquet' is not a format of kind mirror"),
        ({"kind": "mirror", "envelope": "flat"}, "mirrors have rows: leave envelope out"),
        ({"kind": "changelogs", "format": "orc"}, "'orc' is not a format of kind changelogs"),
        ({"kind": "changelogs", "envelope": "flat"}, "changelogs have typed columns"),
        ({"kind": "changelogs", "deletes": "mark"}, "deletes goes with kind mirror only"),
        ({"kind": "changelogs", "partition_by": ["date"]}, "partition_by goes with kind changelog"),
        (
            {"bad_records": "stop"},
            "bad_records goes with kind changelogs and kafka and",
        ),
        ({"deletes": "mark"}, "deletes goes with kind mirror only"),
        ({"topic": "t"}, "topic goes with kind kafka and pubsub only"),
        ({"format": "kafka"}, "'kafka' is not a format of kind changelog"),
        ({"kind": "kafka"}, "options needs kafka.bootstrap.servers"),
        ({**KAFKA, "strict": True}, "strict goes with envelope debezium, and with {table}"),
        ({**STRICT, "topic": "all"}, "strict goes with envelope debezium, and with {table}"),
        ({**KAFKA, "heartbeats_topic": "beats"}, "heartbeats_topic goes with strict"),
        ({**KAFKA, **AVRO, "format": "protobuf"}, "format protobuf goes with strict"),
        ({**STRICT, "format": "protobuf"}, "need confluent_schema_registry, the registry's URL"),
        ({**STRICT, "extra_headers": {"a": "b"}}, "strict has the connector's headers"),
        (
            {**KAFKA, "envelope": "flat", "headers_json_column_name": "meta"},
            "headers_json_column_name goes with envelope enriched, row, wrapped in format json",
        ),
        ({**KAFKA, **AVRO, "headers_json_column_name": "meta"}, "in format json"),
        ({**PUBSUB, "strict": True}, "strict goes with kind kafka only"),
        ({**STRICT, "heartbeats_topic": "a", "watermarks_topic": "a"}, "are one topic"),
        ({**KAFKA, "topic": "a b"}, "topic"),
        ({**KAFKA, "topic": "{tables}"}, "topic"),
        ({"updated": True}, "updated and mvcc_timestamp go with envelope enriched, row, wrapped"),
        ({**ENRICHED, "updated": True}, "they go with enriched_properties source"),
        (
            {**ENRICHED, "mvcc_timestamp": True, "enriched_properties": "schema"},
            "properties source",
        ),
        ({**ENRICHED, "enriched_properties": ["sink"]}, "Input should be 'source' or 'schema'"),
        (
            {**KAFKA, "enriched_properties": ["source"]},
            "enriched_properties goes with envelope enriched",
        ),
        (
            {**KAFKA, **AVRO, **ENRICHED, "enriched_properties": "source,schema"},
            "enriched_properties schema goes with format json",
        ),
        (
            {**KAFKA, "envelope": "key_only", "encode_json_value_null_as_object": True},
            "encode_json_value_null_as_object goes with envelope enriched, row, wrapped",
        ),
        (
            {**KAFKA, **AVRO, "encode_json_value_null_as_object": True},
            "encode_json_value_null_as_object goes with format json",
        ),
        (
            {**KAFKA, **AVRO, **ENRICHED, "key_in_value": True},
            "topic_in_value go with envelope enriched, row, wrapped in format json",
        ),
        (
            {**KAFKA, "envelope": "flat", "diff": True},
            "diff goes with envelope wrapped or enriched",
        ),
        ({"envelope": "avro"}, "envelope"),
        (
            {**KAFKA, "schemas_enable": True},
            "schemas_enable goes with envelope debezium in format json",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, sink: dict[str, Any], said: str
) -> None:
    assert said in problems(tmp_path, text(MINIMAL["sink"] | sink))


# The keys that a kind needs.
OWN: dict[str, dict[str, Any]] = {
    "kafka": KAFKA,
    "spark": {"format": "console"},
    "pubsub": {"project": "orders"},
}


@pytest.mark.parametrize("kind", sink_kinds())
@pytest.mark.parametrize("off", [False, "false"])
def test_a_switch_that_is_off_goes_with_every_kind(tmp_path: Path, kind: str, off: object) -> None:
    sink = MINIMAL["sink"] | OWN.get(kind, {}) | {"kind": kind}
    settings = loaded(tmp_path, sink | {"updated": off, "mvcc_timestamp": off})
    assert settings.sink == loaded(tmp_path, sink).sink


@pytest.mark.parametrize("on", [True, "true", "maybe"])
def test_a_switch_that_is_on_goes_with_its_own_kinds_only(tmp_path: Path, on: object) -> None:
    said = problems(tmp_path, text(MINIMAL["sink"] | {"kind": "mirror", "updated": on}))
    assert "updated goes with kind changelog and kafka and pubsub and spark only" in said


def test_an_unknown_kind_is_the_only_problem_that_the_sink_has(tmp_path: Path) -> None:
    sink = {**KAFKA, "kind": "kafak", "format": "avro", "topic": "t"}
    said = problems(tmp_path, text(sink))
    (line,) = said.splitlines()
    assert "slackwater.yaml:" in line
    assert line.endswith(
        "sink.kind: Input should be 'changelog', 'changelogs', 'kafka', 'mirror', 'pubsub' or"
        " 'spark'"
    )


def test_the_earliest_start_takes_no_initial_scan(tmp_path: Path) -> None:
    yaml_text = text(MINIMAL["sink"], start="earliest", initial_scan="yes")
    assert "earliest does not go with an initial scan" in problems(tmp_path, yaml_text)
    assert loaded(tmp_path, MINIMAL["sink"], start="earliest").initial_scan == "no"


@pytest.mark.parametrize("kind", sink_kinds())
def test_the_settings_of_each_kind_make_its_sink(tmp_path: Path, kind: str) -> None:
    settings = loaded(tmp_path, MINIMAL["sink"] | OWN.get(kind, {}) | {"kind": kind})
    sink = make_sink(settings)
    classes = {"changelog": FileChangelog, "kafka": MessageSink, "pubsub": MessageSink}
    own_module = type(settings.sink).__module__
    assert type(sink).__module__ == (classes[kind].__module__ if kind in classes else own_module)
    assert isinstance(settings.sink, sink_kinds()[kind])


CHANGEFEED_OPTIONS = {
    "updated": True,
    "mvcc_timestamp": True,
    "enriched_properties": ("schema", "source"),
    "encode_json_value_null_as_object": True,
}


@pytest.mark.parametrize("kind", ["changelog", "kafka", "pubsub", "spark"])
def test_what_a_changefeed_is_asked_for_reaches_its_envelope(tmp_path: Path, kind: str) -> None:
    sink = MINIMAL["sink"] | OWN.get(kind, {}) | ENRICHED | {"kind": kind}
    in_variable = {"enriched_properties": "schema,source"}
    settings = loaded(tmp_path, sink | CHANGEFEED_OPTIONS | in_variable).sink
    assert isinstance(settings, EnvelopeSettings)
    options = vars(settings.make_envelope(ORIGIN).options)
    assert options.items() >= (CHANGEFEED_OPTIONS | {"sink": kind}).items()


def test_diff_in_the_envelope_enriched_needs_old_values(tmp_path: Path) -> None:
    sink = loaded(tmp_path, KAFKA | ENRICHED | {"diff": True}).sink
    sink.check_capture_type("NEW_ROW_AND_OLD_VALUES")
    with pytest.raises(PartialRowError, match=r"which sink\.diff adds"):
        sink.check_capture_type("NEW_ROW")


@pytest.mark.parametrize("envelope", ["wrapped", "enriched", "row", "datastream"])
def test_a_part_of_a_row_is_refused_where_it_looks_whole(tmp_path: Path, envelope: str) -> None:
    sink = loaded(tmp_path, KAFKA | {"envelope": envelope}).sink
    sink.check_capture_type("NEW_ROW")
    with pytest.raises(PartialRowError, match=f"of the envelope {envelope} take"):
        sink.check_capture_type("OLD_AND_NEW_VALUES")


def test_spark_needs_jars_of_the_kind_and_of_the_format(tmp_path: Path) -> None:
    assert list(spark_confs()) == ["delta", "iceberg", "kafka", "s3a", "gs", "abfss"]
    assert loaded(tmp_path, KAFKA).sink.spark_needs & spark_confs().keys() == {"kafka"}
    by_spark = MINIMAL["sink"] | {"kind": "spark", "format": "delta"}
    assert loaded(tmp_path, by_spark).sink.spark_needs & spark_confs().keys() == {"delta"}
    files = loaded(tmp_path, MINIMAL["sink"]).sink
    assert not files.spark_needs & spark_confs().keys()


def test_a_near_name_is_found_in_the_keys_of_every_kind(tmp_path: Path) -> None:
    said = problems(tmp_path, text(MINIMAL["sink"] | {"deletez": "mark"}))
    assert "sink.deletez: unknown key; did you mean 'deletes'?" in said


@pytest.mark.parametrize("capture", ["OLD_AND_NEW_VALUES", "NEW_VALUES"])
def test_mirrors_whose_rows_are_replaced_need_whole_rows(tmp_path: Path, capture: str) -> None:
    mirror = BIGQUERY | {"kind": "mirror", "consistency": "table"}
    sink = loaded(tmp_path, mirror).sink
    with pytest.raises(PartialRowError, match=f"{capture} have parts of rows") as refused:
        sink.check_capture_type(capture)
    assert "or set sink.consistency to transaction" in refused.value.hint
    for whole in ("NEW_ROW", "NEW_ROW_AND_OLD_VALUES"):
        sink.check_capture_type(whole)
    loaded(tmp_path, mirror | {"consistency": "transaction"}).sink.check_capture_type(capture)


def test_a_table_without_the_column_of_headers_is_named_before_anything_runs(
    tmp_path: Path,
) -> None:
    sink = loaded(tmp_path, {**KAFKA, "headers_json_column_name": "meta"}).sink
    with_it = columns_from_schema({"id": "bigint", "meta": "jsonb"}, ["id"])
    sink.check_tables({"a": with_it})
    for columns in ({"id": "INT64"}, {"id": "INT64", "meta": "STRING(MAX)"}):
        with pytest.raises(ColumnNameError, match="table b has no JSON column meta"):
            sink.check_tables({"a": with_it, "b": columns_from_schema(columns, ["id"])})
