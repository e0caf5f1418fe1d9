"""Epochs read without Spark, on the emulator: the loop that other tests are built on."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from reader.change_stream import Dialect
from reader.connection import Connection
from slackwater.demo.load import Load
from tests.emulators import NewDatabase
from tests.epochs import EpochLoop
from tests.truths import require_equal, truth_of


@pytest.mark.parametrize(
    ("dialect", "state"),
    [
        (Dialect.GOOGLE_STANDARD_SQL, "sqlite"),
        (Dialect.GOOGLE_STANDARD_SQL, "spanner"),
        (Dialect.POSTGRESQL, "postgresql"),
    ],
    ids=str,
)
def test_epochs_under_churn_hold_every_record_once(
    dialect: Dialect, state: str, new_database: NewDatabase, new_store_url: Callable[[str], str]
) -> None:
    stream = new_database(dialect)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    loop = EpochLoop(
        stream,
        new_store_url(state),
        start_ns=start_ns,
        options={"max_span_seconds": "1"},
    )
    Load(stream, dialect, seed=1).run(transactions_per_second=40, seconds=5)
    end_ns = loop.connection.strong_read_timestamp_ns()
    output = pa.concat_tables(loop.epochs(end_ns))
    truth = truth_of(stream, start_ns, loop.watermark_ns or 0, dialect)
    require_equal(output, truth)
    assert len(truth.records) > 100
    loop.close()
