"""Processes that start at once on a fresh machine fetch Spark's jars one after the other."""

import threading
from pathlib import Path

from pyspark import SparkConf

from slackwater.pipeline.spark.jar_cache import fetching_alone

DELTA = "io.delta:delta-spark_4.1_2.13:4.3.0"
JAR = "io.delta_delta-spark_4.1_2.13-4.3.0.jar"


def conf(ivy: Path, packages: str) -> SparkConf:
    settings = SparkConf(loadDefaults=False).set("spark.jars.ivy", str(ivy))
    return settings.set("spark.jars.packages", packages)


class Other(threading.Thread):
    """Somebody else who starts a JVM with the same settings."""

    def __init__(self, settings: SparkConf) -> None:
        super().__init__(daemon=True)
        self._settings = settings
        self.entered = threading.Event()

    def run(self) -> None:
        with fetching_alone(self._settings):
            self.entered.set()


def test_a_second_process_waits_until_the_first_has_fetched_its_jars(tmp_path: Path) -> None:
    settings = conf(tmp_path / "ivy", DELTA)
    other = Other(settings)
    with fetching_alone(settings):
        other.start()
        assert not other.entered.wait(0.3)
        jars = tmp_path / "ivy" / "jars"
        jars.mkdir()
        (jars / JAR).touch()
        # It is there, and may be unfinished.
        assert not other.entered.wait(0.3)
    assert other.entered.wait(30)


def test_nobody_waits_for_jars_that_are_there(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / JAR).touch()
    for packages in (DELTA, ""):
        other = Other(conf(tmp_path, packages))
        with fetching_alone(conf(tmp_path, packages)):
            other.start()
            assert other.entered.wait(30)
    # One of two is missing, or is named in another way than Spark keeps it.
    for packages in (f"{DELTA},org.other:jar:1", "nonsense"):
        other = Other(conf(tmp_path, packages))
        with fetching_alone(conf(tmp_path, packages)):
            other.start()
            assert not other.entered.wait(0.3)
        assert other.entered.wait(30)
