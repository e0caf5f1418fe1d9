"""An emulator of its own for a measurement, with a database."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reader.change_stream import ChangeStream, Dialect
from slackwater.demo.load import CHANGE_STREAM, ddl
from slackwater.emulator import running_emulator
from slackwater.emulator_database import create_database


@contextmanager
def bench_database(
    statements: Sequence[str] | None = None,
    change_stream: str = CHANGE_STREAM,
    *,
    partition_alive_seconds: int | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[ChangeStream]:
    """A GoogleSQL database; its change stream.

    Args:
        statements: of its schema; None for the demo's.
        change_stream: that the schema makes.
        partition_alive_seconds, arguments: see running_emulator().
    """
    dialect = Dialect.GOOGLE_STANDARD_SQL
    with running_emulator(
        partition_alive_seconds=partition_alive_seconds, arguments=arguments
    ) as emulator:
        os.environ.update(emulator.environment())
        stream = ChangeStream(
            project="bench-project",
            instance="bench-instance",
            database=f"db-{time.time_ns() % 10**9}",
            change_stream=change_stream,
            emulator_host=emulator.host,
        )
        create_database(stream, dialect, ddl(dialect) if statements is None else statements)
        yield stream
