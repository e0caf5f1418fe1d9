"""Connectors of Hadoop come with the path that needs them, unless the user has his own."""

from pathlib import Path
from typing import Any

import pyspark
import pytest

from slackwater.errors import SparkFailedError
from slackwater.pipeline.spark import classified_jars
from slackwater.pipeline.spark.class_path import jar_names, joined
from slackwater.pipeline.spark.classified_jars import with_classified_jars
from slackwater.pipeline.spark.sink_needs import all_jars, needed
from slackwater.spark_sink.output.hadoop_connectors import CONNECTORS
from slackwater.spark_sink.sinks.registry import parse_sink_settings
from tests.support.spark_starts import started_with

NAMES = {connector.name for connector in CONNECTORS}
PACKAGES = "spark.jars.packages"
GCS = "com.google.cloud.bigdataoss:gcs-connector:4.0.0:shaded"
ABFSS = "abfss://c@account.dfs.core.windows.net/out"
KAFKA = {"kafka.bootstrap.servers": "broker:9092"}


def sink(**values: Any) -> Any:
    return parse_sink_settings({"checkpoint": "/data/checkpoint", **values})


def packages(*names: str, conf: dict[str, str] | None = None) -> list[str]:
    """Return the packages that Spark is started with."""
    own = conf or {}
    values = joined(needed(names, own, None, {}), own, jar_names(own, None, {}))
    return values.get(PACKAGES, "").split(",")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"kind": "spark", "format": "csv", "path": "s3a://bucket/out"}, {"s3a"}),
        (
            {"kind": "spark", "format": "csv", "path": "gs://b/o", "checkpoint": "s3a://b/c"},
            {"gs", "s3a"},
        ),
        ({"path": "out", "checkpoint": ABFSS}, {"abfss"}),
        ({"path": "out", "checkpoint": ABFSS.replace("abfss", "abfs")}, {"abfss"}),
        ({"kind": "mirror", "path": "gs://bucket/out", "checkpoint": "s3a://b/c"}, {"s3a"}),
        # Written without Spark; the checkpoint is Spark's all the same.
        ({"path": "gs://bucket/out"}, set()),
        ({"path": "s3a://bucket/out", "format": "delta"}, set()),
        ({"kind": "changelogs", "path": ABFSS}, set()),
        ({"kind": "mirror", "path": ABFSS}, set()),
        ({"path": "s3a://bucket/out", "checkpoint": "gs://bucket/c"}, {"gs"}),
        # Tasks write what is staged, and read it.
        ({"kind": "kafka", "options": KAFKA, "path": "gs://bucket/out"}, set()),
        # The catalog's own client writes the tables.
        ({"kind": "mirror", "format": "iceberg", "catalog": "a", "path": "gs://bucket/o"}, set()),
        ({"kind": "mirror", "format": "iceberg", "catalog": "lake.orders", "path": "out"}, set()),
        ({"path": "out"}, set()),
        ({"path": "out", "checkpoint": "hdfs://host/c"}, set()),
    ],
)
def test_a_connector_is_needed_for_what_spark_reads_and_writes(
    values: dict[str, Any], names: set[str]
) -> None:
    assert sink(**values).spark_needs & NAMES == names


def test_connectors_are_of_the_hadoop_that_spark_has() -> None:
    (api,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    hadoop = api.stem.rpartition("-")[2]
    assert f"org.apache.hadoop:hadoop-aws:{hadoop}" in packages("s3a")
    assert packages("abfss") == [f"org.apache.hadoop:hadoop-azure:{hadoop}"]
    assert packages("gs") == [GCS]
    # A version that was not tried gets none, and `check` says so.
    assert CONNECTORS[0].spark_conf("5.0.0") == {}


def test_the_users_packages_stay_beside_a_connectors() -> None:
    own = "org.a:b:1"
    assert packages("gs", "delta", conf={PACKAGES: own})[-1] == own
    assert {package.split(":")[1] for package in packages("gs", "delta", conf={PACKAGES: own})} == {
        "b",
        "gcs-connector",
        packages("delta")[0].split(":")[1],
    }


@pytest.mark.parametrize(
    "conf",
    [
        {PACKAGES: "org.apache.hadoop:hadoop-aws:3.3.6"},
        {"spark.jars": "/own/hadoop-aws-3.4.1.jar"},
        {"spark.hadoop.fs.s3a.impl": "com.example.S3"},
    ],
)
def test_a_connector_of_the_users_own_is_left_alone(conf: dict[str, str]) -> None:
    brought = needed({"s3a", "gs"}, conf, None, {})
    assert brought[PACKAGES] == GCS
    assert not [key for key in brought if "s3a" in key]
    assert needed({"s3a"}, conf, None, {}) == {}


def test_a_connector_on_a_class_path_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "gcs-connector-hadoop3-latest.jar").touch()
    environ = {"SPARK_DIST_CLASSPATH": f"{tmp_path}/*"}
    assert needed({"gs"}, {}, None, environ) == {}
    # The folder of spark.jars, which the image has there, is the program's own.
    assert needed({"gs"}, {}, str(tmp_path), environ) == needed({"gs"}, {}, None, {})


def test_a_users_settings_come_before_a_connectors() -> None:
    conf = {"spark.hadoop.fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}
    assert joined(needed({"gs"}, conf, None, {}), conf, [])["spark.hadoop.fs.gs.auth.type"] == (
        "SERVICE_ACCOUNT_JSON_KEYFILE"
    )


def test_what_azures_other_clients_take_from_the_environment_is_named_and_not_shown() -> None:
    key = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "secret"}
    conf = needed({"abfss"}, {}, None, key)
    account = "spark.hadoop.fs.azure.account.key.account.dfs.core.windows.net"
    assert conf[account] == "${env.AZURE_STORAGE_ACCOUNT_KEY}"
    assert "secret" not in str(conf)
    identity = {
        "AZURE_TENANT_ID": "tenant",
        "AZURE_CLIENT_ID": "client",
        "AZURE_FEDERATED_TOKEN_FILE": "/token",
    }
    conf = needed({"abfss"}, {}, None, identity)
    assert conf["spark.hadoop.fs.azure.account.auth.type"] == "OAuth"
    assert conf["spark.hadoop.fs.azure.account.oauth2.token.file"] == (
        "${env.AZURE_FEDERATED_TOKEN_FILE}"
    )
    assert not [key for key in needed({"abfss"}, {}, None, {}) if "azure.account" in key]


def test_the_check_knows_which_jars_will_be_there(tmp_path: Path) -> None:
    mirrors = sink(kind="mirror", path="gs://bucket/out", checkpoint="gs://bucket/checkpoint")
    assert GCS in all_jars(mirrors.spark_needs, {}, None, {})
    mirrors.check_places({}, all_jars(mirrors.spark_needs, {}, None, {}))
    # From a folder nothing is fetched.
    assert GCS not in all_jars(mirrors.spark_needs, {}, str(tmp_path), {})


def test_jars_of_a_folder_and_the_users_come_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a-1.jar", "com.google.cloud.bigdataoss_gcs-connector-4.0.0-shaded.jar"):
        (tmp_path / name).touch()
    baked = sorted(map(str, tmp_path.iterdir()))

    def started(jar: str) -> dict[str, str]:
        return started_with(monkeypatch, "local[1]", {"spark.jars": jar}, tmp_path, {"gs"})

    conf = started("/own.jar")
    assert conf["spark.jars"].split(",") == [*baked, "/own.jar"]
    assert PACKAGES not in conf
    assert conf["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    # Java would take the first of two versions.
    own = "/own/gcs-connector-4.0.1-shaded.jar"
    conf = started(own)
    assert conf["spark.jars"].split(",") == [baked[0], own]
    assert "spark.hadoop.fs.gs.auth.type" not in conf


def test_a_package_with_a_classifier_becomes_a_jar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "jars" / "com.google.cloud.bigdataoss_gcs-connector-4.0.0-shaded.jar"
    conf = {
        "spark.jars": "/own.jar",
        PACKAGES: f"{GCS},org.a:b:1",
        "spark.jars.ivy": str(tmp_path),
    }
    fetched: list[str] = []

    def fetch(package: str, file: Path, *_: Any) -> None:
        fetched.append(package)
        file.parent.mkdir()
        file.touch()

    monkeypatch.setattr(classified_jars, "_fetch", fetch)
    for _ in range(2):
        values = with_classified_jars(conf, {})
        assert values == conf | {"spark.jars": f"/own.jar,{jar}", PACKAGES: "org.a:b:1"}
    assert fetched == [GCS], "once"
    assert with_classified_jars({PACKAGES: GCS, "spark.jars.ivy": str(tmp_path)}, {}) == {
        "spark.jars": str(jar),
        "spark.jars.ivy": str(tmp_path),
    }


def test_a_jar_that_no_repository_has_is_named(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    conf = {PACKAGES: GCS, "spark.jars.ivy": str(tmp_path / "ivy")}
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="own"/><resolvers>'
        f'<ibiblio name="own" m2compatible="true" root="file://{repository}"/>'
        "</resolvers></ivysettings>"
    )
    with pytest.raises(SparkFailedError, match="module not found") as failed:
        with_classified_jars(conf | {"spark.jars.ivySettings": str(settings)}, {})
    assert GCS in failed.value.message
    assert "slackwater jars FOLDER" in failed.value.hint
    with pytest.raises(SparkFailedError, match="has no Ivy"):
        with_classified_jars(conf, {"SPARK_HOME": str(tmp_path)})
