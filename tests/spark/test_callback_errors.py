"""What fails in a callback reaches the driver with its cause, whatever text Spark makes of it."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from slackwater.pipeline.epochs.writer import EpochWriter
from slackwater.pipeline.failures import diagnose
from slackwater.scheduler.read_options import AuditMode
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import jvm_of
from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store
from slackwater.worker_errors import ErrorRecord


def failure_of(spark: SparkSession, store: Store, folder: Path, stage: Any) -> ErrorRecord:
    """Run a query whose sink fails; what the driver makes of it."""
    begin_plan(store, Plan("plan", "orders", 500, 1_500), tasks=0)
    sink: Any = SimpleNamespace(stage=stage)
    lease: Any = SimpleNamespace(generation=1)
    writer = EpochWriter(spark, "orders", sink, store, lease, AuditMode.STOP)
    stream = spark.readStream.format("rate").load().writeStream.foreachBatch(writer.write)
    query = stream.option("checkpointLocation", str(folder)).start()
    with suppress(StreamingQueryException):
        assert query.awaitTermination(240)
    error = query.exception()
    assert error is not None
    return diagnose(error)


@pytest.mark.long
def test_a_long_error_of_javas_is_told_by_its_first_cause(
    session: SparkSession, orders_store: Store, tmp_path: Path
) -> None:
    """Spark's search for an interruption in such a text overflowed its stack."""
    java = jvm_of(session).java

    def stage(changes: DataFrame, epoch: int) -> None:
        error = java.lang.IllegalStateException("x" * 20_000)
        for number in range(300):
            error = java.lang.RuntimeException(f"layer {number}", error)
        raise Py4JJavaError("An error occurred while calling o1.save.\n", error)

    failure = failure_of(session, orders_store, tmp_path / "checkpoint", stage)
    assert failure.error_class == "Py4JJavaError"
    assert "An error occurred while calling" in failure.message
    assert not failure.user_error


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (PublishError("the disk is full.", "Make room"), "the disk is full.", "Make room"),
        (
            OSError(28, "No space left on device", "/data/x"),
            "No space left on device: '/data/x'",
            "",
        ),
    ],
)
def test_an_error_of_pythons_keeps_its_text(
    session: SparkSession,
    orders_store: Store,
    tmp_path: Path,
    error: Exception,
    message: str,
    hint: str,
) -> None:
    def stage(changes: DataFrame, epoch: int) -> None:
        raise error

    failure = failure_of(session, orders_store, tmp_path / "checkpoint", stage)
    assert failure.error_class == type(error).__name__
    assert message in failure.message
    assert failure.hint == hint
