"""What Kafka's delivery exactly once costs against at least once, in one run on a real broker.

Epochs of both ways take turns in one Spark session. Counted is what the sink does: staging an epoch
and sending it, without reading it from Spanner. CPU seconds are those of the driver, the JVM and
Spark's workers, not of the broker.

    python -m bench.kafka_delivery [--large 10] [--small 30] [--json FILE]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.figures import tell
from bench.service import processes_of
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from tests.support.epoch_rows import START, record
from tests.support.kafka_broker import Broker, spark_conf

WAYS: Final = ("at_least_once", "exactly_once")
LARGE: Final = 50_000
SMALL: Final = 50
_WARM_UP_EPOCHS: Final = 3
_NOTE: Final = "x" * 100


@dataclass(frozen=True)
class Spent:
    """What an epoch took."""

    cpu_s: float
    wall_s: float


class Bench:
    """A sink for each way, in one session and with one broker.

    Args:
        session: with the jars of the Kafka sink.
        broker: a running broker.
        folder: for what the sinks stage.
    """

    def __init__(self, session: SparkSession, broker: Broker, folder: Path) -> None:
        self._session, self._broker, self._folder = session, broker, folder
        self._sinks = {way: self._sink(way) for way in WAYS}
        self._epoch = 0

    def _sink(self, way: str) -> MessageSink:
        settings = KafkaSettings.model_validate(
            {
                "checkpoint": str(self._folder / way),
                "envelope": "flat",
                "topic": f"{way}.{{table}}",
                "delivery": way,
                "options": {"kafka.bootstrap.servers": self._broker.host},
            }
        )
        sink = settings.make_sink(Origin(way, "p", "i", "d", "Everything"), RecordFilter())
        sink.position(self._session)
        return sink

    def measure(self, size: int, epochs: int) -> Mapping[str, list[Spent]]:
        """Return what epochs of a size took, by the way of delivery."""
        changes = self._changes(size)
        spent: dict[str, list[Spent]] = {way: [] for way in WAYS}
        for number in range(_WARM_UP_EPOCHS + epochs):
            # In turns, the other one first.
            for way in WAYS if number % 2 else reversed(WAYS):
                one = self._write(way, changes)
                if number >= _WARM_UP_EPOCHS:
                    spent[way].append(one)
        return spent

    def _changes(self, size: int) -> DataFrame:
        columns = {"Id": "INT64", "Note": "STRING"}
        rows = [
            record("INSERT", [({"Id": str(key)}, {"Note": _NOTE}, {})], columns, at=key)
            for key in range(size)
        ]
        path = str(self._folder / f"rows-{size}")
        self._session.createDataFrame(rows, ddl()).write.parquet(path)
        return self._session.read.parquet(path)

    def _write(self, way: str, changes: DataFrame) -> Spent:
        self._epoch += 1
        shift = F.make_dt_interval(mins=F.lit(self._epoch))
        epoch = changes.withColumn("commit_timestamp", F.col("commit_timestamp") + shift)
        low_watermark = START + timedelta(minutes=self._epoch + 1)
        sink = self._sinks[way]
        cpu_s, wall_s = self._cpu_s(), time.monotonic()
        summary = sink.stage(epoch, self._epoch)
        sink.publish(self._session, self._epoch, summary, low_watermark)
        return Spent(self._cpu_s() - cpu_s, time.monotonic() - wall_s)

    def _cpu_s(self) -> float:
        processes = processes_of(os.getpid())
        return sum(sum(p.cpu_times()[:2]) for p in processes if p.pid != self._broker.pid)


def measure(large: int, small: int) -> dict[str, Any]:
    """Measure so many large and small epochs of each way."""
    find_java()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder)
        broker.start()
        session = start_spark(["kafka_delivery"], "local[2]", spark_conf(), ["kafka"])
        try:
            bench = Bench(session, broker, folder)
            of_large = bench.measure(LARGE, large)
            of_small = bench.measure(SMALL, small)
        finally:
            stop_spark(session)
            broker.kill()
    return _figures(of_large, of_small)


def _figures(
    of_large: Mapping[str, list[Spent]], of_small: Mapping[str, list[Spent]]
) -> dict[str, Any]:
    cpu_us = {
        way: round(statistics.median(one.cpu_s for one in spent) / LARGE * 1e6, 2)
        for way, spent in of_large.items()
    }
    ms = {
        way: round(statistics.median(one.wall_s for one in spent) * 1e3)
        for way, spent in of_small.items()
    }
    least, exactly = WAYS
    return {
        "records_an_epoch": LARGE,
        "cpu_us_a_record": cpu_us,
        "cpu_ratio": round(cpu_us[exactly] / cpu_us[least], 2),
        "records_a_small_epoch": SMALL,
        "ms_a_small_epoch": ms,
        "ms_more_a_small_epoch": ms[exactly] - ms[least],
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=10, help="epochs of 50,000 records")
    parser.add_argument("--small", type=int, default=30, help="epochs of 50 records")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tell(measure(options.large, options.small), options.json)


if __name__ == "__main__":
    main()
