"""The settings with which Spark would be started, without a start."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from pyspark import SparkConf

from slackwater.pipeline.spark import session


class _StartedError(Exception):
    def __init__(self, conf: SparkConf) -> None:
        self.conf = dict(conf.getAll())


def started_with(
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    conf: Mapping[str, str],
    jars: Path,
    needs: Collection[str] = ("delta",),
) -> dict[str, str]:
    """Return the settings with which Spark would be started for one pipeline.

    Args:
        monkeypatch: keeps it from being started.
        master, conf: of the settings.
        jars: the folder that they name.
        needs: what the pipeline's sink needs.
    """

    def start(settings: SparkConf, **_: object) -> None:
        raise _StartedError(settings)

    monkeypatch.setattr(session, "_context", start)
    with pytest.raises(_StartedError) as started:
        session.start_spark(["orders"], master, dict(conf), needs, jars=str(jars))
    return started.value.conf
