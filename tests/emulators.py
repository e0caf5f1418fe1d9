"""The real Cloud Spanner emulator for the tests."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from reader.change_stream import ChangeStream, Dialect
from slackwater.demo.load import CHANGE_STREAM, ddl
from slackwater.emulator import Emulator, running_emulator
from slackwater.emulator_database import create_database

CHURN_SECONDS = 2
_NUMBERS = itertools.count()

NewDatabase = Callable[..., ChangeStream]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator whose partitions split, merge or move about every two seconds.

    One a module: the partitions of all its databases go on churning until it ends, and after some
    minutes of that everything takes several times as long.
    """
    log = tmp_path_factory.mktemp("emulator") / "emulator.log"
    with running_emulator(partition_alive_seconds=CHURN_SECONDS, log=log) as running:
        former = os.environ.get("SPANNER_EMULATOR_HOST")
        os.environ.update(running.environment())
        yield running
        if former is None:
            del os.environ["SPANNER_EMULATOR_HOST"]


@contextmanager
def demo_database(
    name: str, dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL
) -> Iterator[ChangeStream]:
    """An emulator of its own under churn, with the demo's schema in a database; for programs."""
    with running_emulator(partition_alive_seconds=CHURN_SECONDS) as running:
        os.environ.update(running.environment())
        stream = ChangeStream(
            "test-project", "test-instance", name, CHANGE_STREAM, emulator_host=running.host
        )
        create_database(stream, dialect, ddl(dialect))
        yield stream
        del os.environ["SPANNER_EMULATOR_HOST"]


@pytest.fixture
def new_database(emulator: Emulator) -> NewDatabase:
    """Makes a database with the demo's schema, or the one given; its change stream."""

    def make(
        dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL,
        statements: Sequence[str] | None = None,
        change_stream: str = CHANGE_STREAM,
    ) -> ChangeStream:
        stream = ChangeStream(
            project="test-project",
            instance="test-instance",
            database=f"db-{next(_NUMBERS)}-{time.time_ns() % 10**9}",
            change_stream=change_stream,
            emulator_host=emulator.host,
        )
        create_database(stream, dialect, ddl(dialect) if statements is None else statements)
        return stream

    return make
