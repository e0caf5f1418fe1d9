"""Epochs read without Spark, on the emulator: the loop that other tests are built on."""

import threading
import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.plan import Task
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.support.truths import require_equal, truth_of


@pytest.mark.parametrize(
    ("dialect", "state"),
    [
        (Dialect.GOOGLE_STANDARD_SQL, "sqlite"),
        pytest.param(Dialect.GOOGLE_STANDARD_SQL, "spanner", marks=pytest.mark.long),
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
        options={"max_span": "1s"},
    )
    Load(stream, dialect, seed=1).run(transactions_per_second=40, seconds=5)
    end_ns = loop.connection.strong_read_timestamp_ns()
    output = pa.concat_tables(loop.epochs(end_ns))
    truth = truth_of(stream, start_ns, loop.watermark_ns or 0, dialect)
    require_equal(output, truth)
    assert len(truth.records) > 100
    loop.close()


BEGINNING_SECONDS = 0.15


class SlowToBegin(EpochLoop):
    """Its tasks begin some time after the epoch's end was chosen, as Spark's do."""

    def read(self, tasks: Sequence[Task]) -> pa.Table:
        time.sleep(BEGINNING_SECONDS)
        return super().read(tasks)


def test_epochs_that_end_ahead_of_the_clock_hold_every_record_once(
    new_database: NewDatabase, new_store_url: Callable[[str], str]
) -> None:
    stream = new_database()
    start_ns = Connection(stream).strong_read_timestamp_ns()
    loop = SlowToBegin(stream, new_store_url("sqlite"), start_ns=start_ns)
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=2)
    writing = threading.Thread(
        target=load.run, kwargs={"transactions_per_second": 60, "seconds": 6}
    )
    writing.start()
    epochs = []
    while writing.is_alive():
        epochs.append(loop.epoch())
    clock_ns = loop.connection.strong_read_timestamp_ns()
    end_ns = loop.planner.next_watermark_ns(loop.watermark_ns)
    assert end_ns > clock_ns + BEGINNING_SECONDS * 1e9
    epochs.append(loop.epoch(end_ns=end_ns))
    output = pa.concat_tables(epochs)
    require_equal(output, truth_of(stream, start_ns, end_ns))
    assert output.num_rows > 100
    loop.close()
