"""Spark's settings for a driver in a pod."""

import os
from pathlib import Path

import pytest

from slackwater.errors import SettingsError
from slackwater.pipeline.spark import session
from slackwater.pipeline.spark.kubernetes import driver_class_path, own_namespace, pod_conf
from tests.support.spark_starts import started_with

K8S = "k8s://https://kubernetes.default.svc"
STANDALONE = "spark://master:7077"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "delta.jar").touch()
    # The tests leave the environment as it was.
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "")
    for variable in ("POD_NAME", "POD_IP"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "jars"


def test_executors_find_the_jars_of_their_image_and_copy_none(
    monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    conf = started_with(monkeypatch, K8S, {}, jars)
    assert not [key for key in conf if key.startswith("spark.jars")]
    assert conf["spark.executor.extraClassPath"] == f"{jars}/*"
    assert os.environ["SPARK_DIST_CLASSPATH"] == f"{jars}/*"


def test_a_class_path_of_the_users_own_is_kept(monkeypatch: pytest.MonkeyPatch, jars: Path) -> None:
    own = {"spark.executor.extraClassPath": "/opt/own/*"}
    conf = started_with(monkeypatch, K8S, own, jars)
    assert conf["spark.executor.extraClassPath"] == f"/opt/own/*:{jars}/*"


def test_of_two_options_of_the_jvm_the_users_own_comes_last_and_wins(
    monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    own = {session.DRIVER_OPTIONS: "-XX:Tier4InvocationThreshold=5000 -Xmx2g"}
    options = started_with(monkeypatch, K8S, own, jars)[session.DRIVER_OPTIONS].split()
    assert options[-2:] == own[session.DRIVER_OPTIONS].split()
    assert "-XX:Tier4InvocationThreshold=50000" in options[:-2]


def test_on_other_masters_spark_brings_the_jars_to_the_executors(
    monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    conf = started_with(monkeypatch, STANDALONE, {"spark.authenticate": "false"}, jars)
    assert conf["spark.jars"] == f"{jars}/delta.jar"
    assert "spark.jars.packages" not in conf
    assert "spark.executor.extraClassPath" not in conf


def test_a_standalone_cluster_needs_the_secret_of_its_master_and_workers(
    monkeypatch: pytest.MonkeyPatch, jars: Path, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    named = {"spark.authenticate.secret.file": str(file)}
    for conf, reason in (({}, "needs a secret"), (named, "can't be read")):
        with pytest.raises(SettingsError, match=reason):
            started_with(monkeypatch, STANDALONE, conf, jars)
    file.write_text("of the cluster\n")
    conf = started_with(monkeypatch, STANDALONE, named, jars)
    assert conf["spark.authenticate.secret"] == "of the cluster"
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"


def test_a_folder_without_jars_is_refused_on_kubernetes_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there are no jars"):
        session.start_spark(["orders"], K8S, {}, (), jars=str(tmp_path))


def test_executors_are_asked_for_in_the_pods_own_namespace_and_belong_to_its_driver(
    monkeypatch: pytest.MonkeyPatch, jars: Path, tmp_path: Path
) -> None:
    file = tmp_path / "namespace"
    file.write_text("cdc\n")
    monkeypatch.setattr(session, "own_namespace", lambda: own_namespace(file))
    monkeypatch.setenv("POD_NAME", "slackwater-1")
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    conf = started_with(monkeypatch, K8S, {"spark.driver.host": "driver.example"}, jars)
    assert conf["spark.kubernetes.namespace"] == "cdc"
    assert conf["spark.kubernetes.driver.pod.name"] == "slackwater-1"
    assert conf["spark.driver.host"] == "driver.example", "the user's settings come first"


def test_an_epoch_has_a_task_for_each_core_asked_for_however_late_its_executor_comes(
    monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    asked = {"spark.executor.instances": "3", "spark.executor.cores": "4"}
    assert started_with(monkeypatch, K8S, asked, jars)["spark.default.parallelism"] == "12"
    assert started_with(monkeypatch, K8S, {}, jars)["spark.default.parallelism"] == "2"
    own = {**asked, "spark.default.parallelism": "5"}
    assert started_with(monkeypatch, K8S, own, jars)["spark.default.parallelism"] == "5"
    grows = {"spark.dynamicAllocation.enabled": "true"}
    assert "spark.default.parallelism" not in started_with(monkeypatch, K8S, grows, jars)
    assert "spark.default.parallelism" not in started_with(monkeypatch, "local[2]", asked, jars)


def test_outside_a_pod_nothing_is_named(tmp_path: Path) -> None:
    named = pod_conf({}, own_namespace(tmp_path / "namespace"))
    assert not {"spark.kubernetes.namespace", "spark.driver.host"} & named.keys()


def test_the_driver_asks_kubernetes_for_pods_alone(
    monkeypatch: pytest.MonkeyPatch, jars: Path
) -> None:
    """Each other kind of object would be a right that it needs."""
    conf = started_with(monkeypatch, K8S, {}, jars)
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    for name in ("service.deleteOnTermination", "ownPersistentVolumeClaim"):
        assert conf[f"spark.kubernetes.driver.{name}"] == "false"


def test_jars_are_added_to_the_drivers_class_path_once() -> None:
    once = driver_class_path("/jars", {"SPARK_DIST_CLASSPATH": "/own/*"})
    assert once == "/own/*:/jars/*"
    assert driver_class_path("/jars", {"SPARK_DIST_CLASSPATH": once}) == once
