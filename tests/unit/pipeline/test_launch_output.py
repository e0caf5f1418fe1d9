"""Ivy's lines are shown only if the JVM does not start; all others always."""

import os
import threading
from collections.abc import Callable

import pytest

from slackwater.pipeline.spark.launch_output import without_ivys_lines

IVYS = (
    ":: loading settings :: url = jar:file:ivysettings.xml",
    "Ivy Default Cache set to: /data/.ivy2.5.2/cache",
    "The jars for the packages stored in: /data/.ivy2.5.2/jars",
    "io.delta#delta-spark_4.1_2.13 added as a dependency",
    "\tfound io.delta#delta-storage;4.3.0 in central",
    "",
)
OTHERS = ("WARNING: Using incubator modules: jdk.incubator.vector", "timestamp=2026 level=error")


Said = Callable[[list[str]], None]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    """Read standard error when the other thread has written all: to read meanwhile loses lines."""
    # The same process may run the JVM of other tests' Spark, whose thread does not end.
    others = set(threading.enumerate())

    def check(expected: list[str]) -> None:
        for thread in set(threading.enumerate()) - others:
            thread.join(60)
            assert not thread.is_alive()
        assert capfd.readouterr().err.splitlines() == expected

    return check


def test_ivys_lines_are_dropped_once_the_jvm_has_started(
    said: Said, capfd: pytest.CaptureFixture[str]
) -> None:
    with without_ivys_lines() as output:
        jvms = os.dup(output)
        os.write(jvms, "\n".join([*IVYS, *OTHERS, ""]).encode())
        assert capfd.readouterr().err == ""
    os.write(jvms, b"\tat org.apache.Spark.later(Spark.scala:1)\n")
    os.close(jvms)
    said([*OTHERS, "\tat org.apache.Spark.later(Spark.scala:1)"])


def test_all_lines_are_shown_if_it_does_not_start(said: Said) -> None:
    def start() -> None:
        with without_ivys_lines() as output:
            os.write(output, "\n".join([*IVYS, *OTHERS, ""]).encode())
            raise OSError("no Java")

    with pytest.raises(OSError, match="no Java"):
        start()
    said([*IVYS, *OTHERS])


def test_what_the_jvm_says_of_values_is_safe_to_show(said: Said) -> None:
    with without_ivys_lines() as output:
        os.write(output, "no partition \x1b[31m\x9b\u202e\n\tat Spark\n".encode())
    said(["no partition \\u001b[31m\\u009b\\u202e", "\tat Spark"])
