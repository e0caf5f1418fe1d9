"""Jars from a Maven repository are those that were tested, or Spark does not start with them."""

import re
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slackwater.commands.jars import FORMATS
from slackwater.errors import SparkFailedError
from slackwater.pipeline.spark import pinned_jars, session
from slackwater.pipeline.spark.class_path import names_of
from slackwater.pipeline.spark.jar_cache import file_name
from slackwater.pipeline.spark.pinned_jars import UNSEEN, checksum, pinned, require_pinned
from slackwater.spark_sink.errors import UnknownFormatError
from slackwater.spark_sink.sinks.registry import spark_confs
from tests.support.repository import ROOT

DELTA = "io.delta_delta-spark_4.1_2.13-4.3.0.jar"
KAFKA = "org.apache.spark_spark-token-provider-kafka-0-10_2.13-4.1.3.jar"


def ivy_jar(folder: Path, name: str) -> Path:
    """Make a file where Ivy keeps a jar of this name."""
    jar = folder / "jars" / name
    jar.parent.mkdir(exist_ok=True)
    jar.write_text("not what was tested")
    return jar


def test_a_changed_jar_is_refused_with_both_checksums_and_what_to_do(tmp_path: Path) -> None:
    jar = ivy_jar(tmp_path, DELTA)
    with pytest.raises(SparkFailedError) as caught:
        require_pinned([jar], tmp_path, has_own_packages=True)
    assert not caught.value.user_error
    for part in (str(jar), checksum(jar), pinned()[DELTA]):
        assert part in caught.value.message
    assert f"Remove {tmp_path}" in caught.value.hint


def test_a_jar_in_no_list_is_refused_unless_the_user_has_packages_of_his_own(
    tmp_path: Path,
) -> None:
    jar = ivy_jar(tmp_path, "org.other_jar-1.jar")
    with pytest.raises(SparkFailedError, match="none of the jars"):
        require_pinned([jar], tmp_path, has_own_packages=False)
    require_pinned([jar], tmp_path, has_own_packages=True)


def test_a_jar_that_could_not_be_had_is_taken_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pinned()[KAFKA] == UNSEEN
    with capture_logs() as lines:
        require_pinned([ivy_jar(tmp_path, KAFKA)], tmp_path, has_own_packages=False)
    assert [line["log_level"] for line in lines] == ["warning"]
    monkeypatch.setattr(pinned_jars, "pinned", lambda: {KAFKA: "0" * 64})
    with pytest.raises(SparkFailedError):
        require_pinned([ivy_jar(tmp_path, KAFKA)], tmp_path, has_own_packages=False)


@pytest.mark.parametrize("own", [{}, {"spark.jars.packages": "org.other:jar:1"}])
def test_spark_is_not_started_with_a_changed_jar_and_its_jvm_ends(
    own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar, mine = ivy_jar(tmp_path, DELTA), tmp_path / "mine" / "mine.jar"
    ended: list[Any] = []
    monkeypatch.setattr(session, "launch", lambda _: "gateway")
    monkeypatch.setattr(session, "listed_jars", lambda _: [mine, jar])
    monkeypatch.setattr(session, "end", ended.append)
    monkeypatch.setattr(session, "SparkContext", lambda **_: pytest.fail("Spark is started"))
    conf = own | {"spark.jars.ivy": str(tmp_path)}
    with pytest.raises(SparkFailedError, match="not the jar that was tested"):
        session.start_spark(["orders"], "local[1]", conf, ["delta"])
    assert ended == ["gateway"]


def test_a_copy_elsewhere_is_compared_and_a_jar_of_another_name_is_the_users(
    tmp_path: Path,
) -> None:
    """`slackwater jars` copies them; who has his own names it as he likes."""
    copy = ivy_jar(tmp_path, DELTA)
    with pytest.raises(SparkFailedError, match="not the jar that was tested") as caught:
        require_pinned([copy], tmp_path / "ivy", has_own_packages=False)
    assert f"Remove {copy}; `slackwater jars {copy.parent}` fetches it" in caught.value.hint
    own = ivy_jar(tmp_path, "delta-spark_4.1_2.13-4.3.0.jar")
    require_pinned([own], tmp_path / "ivy", has_own_packages=False)


def test_a_link_to_ivys_folder_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "ivy").mkdir()
    jar = ivy_jar(tmp_path / "ivy", "org.other_jar-1.jar")
    (tmp_path / "link").symlink_to(tmp_path / "ivy")
    with pytest.raises(SparkFailedError, match="none of the jars"):
        require_pinned([jar], tmp_path / "link", has_own_packages=False)


def versions() -> list[str]:
    """Return the versions of Spark in the lock files."""
    files = ("requirements.lock", "requirements-spark42.lock")
    return [
        version
        for file in files
        for version in re.findall(r"^pyspark==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_each_package_is_pinned_for_both_versions_of_spark(name: str) -> None:
    assert [version[:3] for version in versions()] == ["4.1", "4.2"]
    for version in versions():
        try:
            conf = spark_confs()[name](version)
        except UnknownFormatError:
            continue
        packages = names_of(conf, "spark.jars.packages")
        assert packages
        assert {file_name(package) for package in packages} <= pinned().keys(), version
