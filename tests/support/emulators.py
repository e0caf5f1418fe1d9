"""The real Cloud Spanner emulator for the tests."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from slackwater.demo.load import CHANGE_STREAM, ddl
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator import Emulator, running_emulator
from slackwater.testing.emulator_database import create_database

CHURN_SECONDS = 2
_NUMBERS = itertools.count()

NewDatabase = Callable[..., ChangeStream]


@pytest.fixture(scope="module")
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    """Run an emulator whose partitions split, merge or move about every two seconds.

    Each module has its own: the partitions of all its databases churn until it ends, and after some
    minutes that slows everything down several times. So a module that lives longer, and is not
    about partitions, has them live longer, by PARTITION_ALIVE_S.
    """
    log = tmp_path_factory.mktemp("emulator") / "emulator.log"
    alive_s = getattr(request.module, "PARTITION_ALIVE_S", CHURN_SECONDS)
    with running_emulator(partition_alive_seconds=alive_s, log=log) as running, named(running):
        yield running


@pytest.fixture
def new_database(emulator: Emulator) -> NewDatabase:
    """Return a function that makes a database, by default with the demo's schema."""
    return partial(database_on, emulator)


@contextmanager
def own_database(
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL,
    statements: Sequence[str] | None = None,
    change_stream: str = CHANGE_STREAM,
    *,
    partition_alive_seconds: int | None = CHURN_SECONDS,
    arguments: Sequence[str] = (),
) -> Iterator[ChangeStream]:
    """Run a database in its own emulator, for programs.

    Args:
        dialect: the database's dialect.
        statements: its schema; None for the demo's.
        change_stream: the change stream in the schema.
        partition_alive_seconds, arguments: see running_emulator().
    """
    with (
        running_emulator(
            partition_alive_seconds=partition_alive_seconds, arguments=arguments
        ) as running,
        named(running),
    ):
        yield database_on(running, dialect, statements, change_stream)


@contextmanager
def named(emulator: Emulator) -> Iterator[None]:
    """Name the emulator in the environment, for Spanner's client and for child processes."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in emulator.environment().items():
            environment.setenv(name, value)
        yield


def whole_row_ddl() -> list[str]:
    """Return the demo's schema with a change stream that captures whole rows and old values."""
    *tables, stream = ddl(Dialect.GOOGLE_STANDARD_SQL)
    return [*tables, f"{stream} OPTIONS (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"]


def database_on(
    emulator: Emulator,
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL,
    statements: Sequence[str] | None = None,
    change_stream: str = CHANGE_STREAM,
) -> ChangeStream:
    """Make a database, and return its change stream.

    Args:
        emulator: the emulator to make it on.
        dialect, statements, change_stream: see own_database().
    """
    stream = ChangeStream(
        project="test-project",
        instance="test-instance",
        database=f"db-{next(_NUMBERS)}-{time.time_ns() % 10**9}",
        change_stream=change_stream,
        endpoint=plaintext(emulator.host),
    )
    create_database(stream, dialect, ddl(dialect) if statements is None else statements)
    return stream
