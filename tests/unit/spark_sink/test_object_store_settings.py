"""The settings of a changelog in an object store."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from slackwater.config.settings import Spark
from slackwater.pipeline.spark.class_path import jar_names, joined
from slackwater.spark_sink.errors import (
    ColumnNameError,
    FileSystemError,
    ObjectStoreError,
    PublishError,
)
from slackwater.spark_sink.formats import DATABASES
from slackwater.spark_sink.output.hadoop_files import require_file_system
from slackwater.spark_sink.output.object_store import ObjectFiles, probe
from slackwater.spark_sink.sinks.registry import parse_sink_settings, sink_kinds
from slackwater.spark_sink.sql.columns import Column
from tests.support.object_stores import nobody, s3


def parse(**values: Any) -> Any:
    return parse_sink_settings(values)


def test_an_interrupted_removal_leaves_the_later_files() -> None:
    with s3() as store:
        files = ObjectFiles(store.path, store.options, "log")
        names = [f"{number}.json" for number in range(20)]
        for name in names:
            files.create(name, name)
        store.requests.clear()

        def third_is_refused(method: str, name: str) -> bool:
            return method == "POST" and [method for method, _ in store.requests].count("POST") == 3

        store.refuses = third_is_refused
        with pytest.raises(PublishError):
            files.remove(names)
        store.refuses = nobody
        assert sorted(files.names()) == sorted(names[2:])


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az"])
def test_files_in_an_object_store_need_no_checkpoint(scheme: str) -> None:
    # An Azure URL has no account.
    options = {"azure_storage_account_name": "account"} if scheme == "az" else {}

    def sink_in(folder: str, **values: Any) -> Any:
        return parse(path=f"{scheme}://bucket/{folder}", storage_options=options, **values)

    sink = sink_in("changes")
    assert sink.has_expendable_checkpoint
    assert sink.checkpoint == sink_in("changes").checkpoint != sink_in("other").checkpoint
    named = sink_in("changes", checkpoint="/var/lib/checkpoint")
    assert not named.has_expendable_checkpoint


ABFS = "abfss://c@a.dfs.core.windows.net/tables"


@pytest.mark.parametrize("kind", ["changelog", "changelogs", "mirror"])
@pytest.mark.parametrize("table", [{"format": "delta"}, {"format": "iceberg", "catalog": "l.o"}])
def test_tables_in_an_object_store_need_no_checkpoint(kind: str, table: dict[str, str]) -> None:
    path = "gs://bucket/tables"
    sink = parse(kind=kind, path=path, compact_every="1h", **table)
    assert sink.has_expendable_checkpoint
    assert sink.hadoop_paths == (sink.checkpoint,)
    assert not parse(kind=kind, path=path, checkpoint="c", **table).has_expendable_checkpoint


@pytest.mark.parametrize("path", ["out", "s3a://b/t", ABFS])
@pytest.mark.parametrize("kind", ["changelog", "changelogs", "mirror"])
def test_no_kind_refuses_a_format_in_any_place_or_needs_a_jar(kind: str, path: str) -> None:
    formats = sink_kinds()[kind].formats
    assert {"delta", "iceberg"} <= set(formats)
    for file_format in formats:
        if file_format in DATABASES:
            # These have places of their own.
            continue
        catalog = {"catalog": "sqlite:///lake.sqlite"} if file_format == "ducklake" else {}
        sink = parse(kind=kind, path=path, checkpoint="c", format=file_format, **catalog)
        assert sink.spark_needs == {kind}, file_format


def test_a_path_of_a_delta_table_that_would_be_taken_for_another_is_refused() -> None:
    for path in ("/data/a%20b", "file:///data/a%20b", "/data/a\\b", "/data/a\tb"):
        for kind in ("changelog", "changelogs", "mirror"):
            with pytest.raises(ValidationError, match=r"path has .*choose another name"):
                parse(kind=kind, path=path, checkpoint="c", format="delta")
        parse(path=path, checkpoint="c", format="parquet")
    parse(path="/data/100%", checkpoint="c", format="delta")


@pytest.mark.parametrize("path", ["out/changes", "file:///changes"])
def test_everything_else_needs_one(path: str) -> None:
    for file_format in ("parquet", "delta", "iceberg"):
        with pytest.raises(ValidationError, match="checkpoint"):
            parse(path=path, format=file_format)


def test_options_that_nothing_would_use_are_refused() -> None:
    for values in ({"format": "parquet"}, {"format": "iceberg", "catalog": "a"}):
        with pytest.raises(ValidationError, match=r"spark\.conf"):
            parse(path="out", **values, checkpoint="c", storage_options={"aws_region": "r"})
    with pytest.raises(ValidationError, match="aws_regoin"):
        parse(path="s3://bucket/changes", storage_options={"aws_regoin": "r"})


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("s3:///changes", {}, "recognise URL"),
        ("s3a://bucket/a%20b", {}, "path has '%20', which Spark and the object store's client"),
        ("gs://bucket/changes#1", {}, "path has '#'"),
        ("s3://bucket/changes?1", {}, "path has '?'"),
        ("az://bucket/changes", {}, "Account must be specified"),
        ("gs://bucket/changes", {"google_service_account": "/none"}, "/none"),
        ("gs://bucket/changes", {"aws_region": "r"}, "aws_region"),
        ("s3://bucket/changes", {"aws_endpoint": "host:9000"}, "not a URL"),
        ("s3://bucket/changes", {"aws_endpoint": "http://host"}, 'allow_http: "true" permits'),
        ("s3://bucket/changes", {"allow_http": "yes"}, "true or false"),
        # The client's library panics.
        ("s3://bucket/changes", {"aws_allow_http": "true"}, "prefix"),
    ],
)
def test_settings_that_can_not_be_used_say_why(
    path: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        parse(path=path, storage_options=options)


HADOOP_AWS = ["org.apache.hadoop:hadoop-aws:3.4.2"]


def test_spark_needs_a_connector_for_what_it_writes() -> None:
    for path in ("out", "/data/out", "hdfs://host/out", "file:///out"):
        require_file_system(path, {}, [])
    for path in ("s3a://b/out", "gs://b/out", "abfss://c@a.dfs.core.windows.net/out"):
        with pytest.raises(FileSystemError, match="no connector"):
            require_file_system(path, {}, ["hadoop-client-api-3.4.2.jar"])
    require_file_system("s3a://b/out", {}, HADOOP_AWS)
    require_file_system("gs://b/out", {}, ["/opt/jars/gcs-connector-4.0.0-shaded.jar"])
    with pytest.raises(FileSystemError, match="s3a://"):
        require_file_system("s3://b/out", {}, HADOOP_AWS)
    # As on EMR.
    require_file_system("s3://b/out", {"spark.hadoop.fs.s3.impl": "EmrFileSystem"}, [])


def test_a_catalog_has_to_be_defined() -> None:
    values = {"kind": "mirror", "format": "iceberg", "path": "out", "checkpoint": "c"}
    with pytest.raises(FileSystemError, match=r"Set spark\.sql\.catalog\.lake in spark\.conf"):
        parse(**values, catalog="lake.orders").check_places({}, [])
    parse(**values, catalog="lake.orders").check_places({"spark.sql.catalog.lake": "x"}, [])
    parse(**values, catalog="spark_catalog.orders").check_places({}, [])


def test_marks_of_deleted_rows_and_a_change_data_feed_are_not_in_one_table() -> None:
    feed = {"table_properties": {"delta.enableChangeDataFeed": "true"}}
    parse(kind="mirror", path="gs://b/tables", **feed)
    with pytest.raises(ValidationError, match="leave one of them out"):
        parse(kind="mirror", path="gs://b/tables", deletes="mark", **feed)


def test_a_name_that_only_mapped_columns_have_is_refused_where_columns_are_not() -> None:
    tables = {"T": (Column("full name", "STRING(MAX)", False),)}
    for path in ("gs://b/tables", "out"):
        with pytest.raises(ColumnNameError) as refused:
            parse(kind="mirror", path=path, checkpoint="c").check_tables(tables)
        hint = refused.value.hint
        assert hint.startswith("Set delta.columnMapping.mode: name in sink.table_prop")


@pytest.mark.parametrize(
    "values",
    [
        *({"format": name} for name in ("parquet", "json", "orc", "delta")),
        {"format": "iceberg", "catalog": "a"},
        {"kind": "changelogs", "format": "delta"},
        {"kind": "mirror", "format": "delta"},
        {"kind": "mirror", "format": "iceberg", "catalog": "a"},
        {"kind": "kafka", "options": {"kafka.bootstrap.servers": "broker:9092"}},
        {"kind": "spark", "format": "csv"},
    ],
)
def test_what_waits_for_its_audit_needs_a_disk_or_an_object_store(values: dict[str, Any]) -> None:
    for path in ("wasbs://c@a.blob.core.windows.net/out", "hdfs://host/out", "viewfs://out"):
        with pytest.raises(ValidationError, match="neither on a local disk nor in an object store"):
            parse(path=path, checkpoint="/data/c", **values)
        # As the message says.
        parse(kind="spark", path="out", checkpoint="c", format="parquet", options={"path": path})
    for path in ("out", "/data/out", "file:///out", "s3://b/out", "gs://b/out"):
        parse(path=path, checkpoint="/data/c").check_places({}, [])


def test_jars_are_found_where_spark_looks(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "hadoop-aws-3.4.2.jar"
    jar.touch()
    everything = f"/nowhere:{tmp_path}/jars/*"
    places: list[tuple[Spark, dict[str, str]]] = [
        (Spark(jars=str(tmp_path / "jars")), {}),
        (Spark(conf={"spark.jars": f"/other.jar,{jar}"}), {}),
        (Spark(conf={"spark.driver.extraClassPath": everything}), {}),
        (Spark(), {"SPARK_HOME": str(tmp_path)}),
        (Spark(), {"SPARK_DIST_CLASSPATH": everything}),
    ]
    for spark, environ in places:
        require_file_system("s3a://b/out", {}, jar_names(spark.conf, spark.jars, environ))
    with pytest.raises(FileSystemError):
        require_file_system("s3a://b/out", {}, jar_names({}, None, {}))


NEEDED = {
    "spark.jars.packages": "io.delta:delta-spark:4.1.0,org.a:runtime-4.1_2.13:1.11.0",
    "spark.sql.extensions": "Delta",
    "spark.ui.enabled": "false",
}


@pytest.mark.parametrize(
    ("conf", "changed"),
    [
        ({}, {}),
        # The user's lists come to the program's, and what is no list replaces the program's.
        (
            {"spark.jars.packages": "org.a:bundle:1.11.0", "spark.sql.extensions": "Own, Delta"},
            {
                "spark.jars.packages": f"{NEEDED['spark.jars.packages']},org.a:bundle:1.11.0",
                "spark.sql.extensions": "Delta,Own",
            },
        ),
        ({"spark.ui.enabled": "true"}, {"spark.ui.enabled": "true"}),
        # Another version of a package, or a file of it, is taken instead.
        (
            {"spark.jars.packages": "org.a:runtime-4.1_2.13:1.10.0"},
            {"spark.jars.packages": "io.delta:delta-spark:4.1.0,org.a:runtime-4.1_2.13:1.10.0"},
        ),
        (
            {"spark.jars": "/jars/own.jar,/jars/delta-spark-4.1.0.jar"},
            {
                "spark.jars": "/jars/own.jar,/jars/delta-spark-4.1.0.jar",
                "spark.jars.packages": "org.a:runtime-4.1_2.13:1.11.0",
            },
        ),
    ],
)
def test_the_users_jars_come_to_those_of_the_sinks(
    conf: dict[str, str], changed: dict[str, str]
) -> None:
    assert joined(NEEDED, conf, jar_names(conf, None, {})) == NEEDED | changed


def test_the_check_tries_the_store_and_leaves_nothing() -> None:
    with s3() as store:
        probe(f"{store.path}/changes", store.options)
        assert ObjectFiles(store.path, store.options, "changes").names() == []
        with pytest.raises(ObjectStoreError, match="bucket"):
            probe("s3://other/changes", store.options)


def test_the_check_refuses_a_store_that_creates_an_object_again() -> None:
    with s3() as store:
        store.heeds_conditions = False
        with pytest.raises(ObjectStoreError, match="creates an object again"):
            probe(f"{store.path}/changes", store.options)
