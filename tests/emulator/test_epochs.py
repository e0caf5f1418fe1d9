"""Epochs read without Spark, on the emulator: the loop that other tests are built on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from reader.change_stream import Dialect
from reader.connection import Connection
from reader.timestamp import format_rfc3339
from slackwater.demo.load import Load
from slackwater.proof import broken_promises, compare
from slackwater.truth import read_truth
from tests.emulators import NewDatabase
from tests.epochs import EpochLoop


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_epochs_under_churn_hold_every_record_once(
    dialect: Dialect, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database(dialect)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    loop = EpochLoop(
        stream,
        f"sqlite:///{tmp_path / 'state.db'}",
        start_ns=start_ns,
        options={"max_span_seconds": "1"},
    )
    Load(stream, dialect, seed=1).run(transactions_per_second=40, seconds=5)
    end_ns = loop.connection.strong_read_timestamp_ns()
    output = pa.concat_tables(loop.epochs(end_ns))
    truth = read_truth(
        project=stream.project,
        instance=stream.instance,
        database=stream.database,
        change_stream=stream.change_stream,
        is_postgresql=dialect is Dialect.POSTGRESQL,
        start=format_rfc3339(start_ns),
        end=format_rfc3339(loop.watermark_ns or 0),
    )
    assert compare(output, truth.records).is_equal
    assert len(truth.records) > 100
    assert broken_promises(output) == []
    loop.close()
