"""The settings of a pipeline's own Spark session."""

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from slackwater.errors import SettingsError
from slackwater.pipeline.spark.jvm import jvm_process
from slackwater.pipeline.spark.session import (
    require_rules,
    session_for_pipeline,
    stop_spark,
    without_checksums,
)
from slackwater.pipeline.spark.shared import SharedSpark as PipelinesSpark
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import latest_changes
from tests.spark.sessions import SharedSpark, with_one_slot
from tests.support.epoch_rows import frame
from tests.support.merge_epochs import TABLE, record
from tests.support.pages import blocks
from tests.support.strangers import singleton

TIMES = {
    "Id2": ("INT64", "2"),
    "Old": ("TIMESTAMP", "0001-01-01T00:00:00Z"),
    # Twice on the clocks of St. John's.
    "Twice": ("TIMESTAMP", "2025-11-02T04:15:00.5Z"),
    "Day": ("DATE", "0001-01-01"),
}
SETTING = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "FileSystemBasedCheckpointFileManager"
SPARKS = "FileContextBasedCheckpointFileManager"


def test_workers_look_for_modules_in_no_archive(session: SparkSession) -> None:
    """Python reads the directory of each again before every task, and Delta's jars are some."""
    rows = session.range(1).select(F.udf(archives, "array<string>")("id").alias("archives"))
    assert rows.collect()[0]["archives"] == []


def test_workers_collect_no_garbage_among_their_modules(session: SparkSession) -> None:
    """Spark's worker collects it after every task."""
    counts = session.range(1).select(F.udf(collected_objects, "long")("id").alias("count"))
    *_, last = [counts.collect()[0]["count"] for _ in range(3)]
    assert last < 50_000


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kolkata"])
def test_values_are_the_same_in_any_time_zone(session: SparkSession, zone: str) -> None:
    types = {name: kind for name, (kind, _) in TIMES.items()}
    of_row = ("INSERT", {"Id": "1"}, {n: text for n, (_, text) in TIMES.items()}, "NEW_ROW")
    changes = frame(session, [record(1, of_row, {"Id": "INT64", **types})])
    columns = [Column("Id", "INT64", is_key=True)]
    columns += [Column(name, kind, is_key=False) for name, kind in types.items()]
    former = session.conf.get("spark.sql.session.timeZone")
    rows = []
    try:
        for name in ("UTC", zone):
            session.conf.set("spark.sql.session.timeZone", name)
            made = latest_changes(changes, TABLE, columns).selectExpr("row.*").toArrow()
            # The values, and not how the session shows them.
            rows.append([column.cast("int64").to_pylist() for column in made.drop(["Day"])])
            rows[-1].append(made["Day"].to_pylist())
    finally:
        session.conf.set("spark.sql.session.timeZone", str(former))
    assert rows[0] == rows[1]
    assert rows[0][-1] == [date(1, 1, 1)]


def test_a_setting_of_sparks_own_file_is_refused(session: SparkSession) -> None:
    name = "spark.sql.ansi.enabled"
    session.conf.set(name, "false")
    try:
        with pytest.raises(SettingsError, match=f"{name} can't be false") as refused:
            require_rules(session)
    finally:
        session.conf.set(name, "true")
    assert "spark-defaults.conf" in refused.value.hint
    require_rules(session)


def collected_objects(_: int) -> int:
    """Return at how many objects a collection of this worker would look."""
    return len(gc.get_objects())


def archives(_: int) -> list[str]:
    """Those in which this process looks for modules."""
    places = [*sys.path, *sys.path_importer_cache]
    return [place for place in places if ".jar" in place or "pyspark.zip" in place]


def manager(session: SparkSession, checkpoint: str) -> str:
    """Which class Spark itself takes for a checkpoint."""
    jvm: Any = session._jvm
    streaming = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    made = streaming.CheckpointFileManager.create(
        jvm.org.apache.hadoop.fs.Path(checkpoint),
        session._jsparkSession.sessionState().newHadoopConf(),
    )
    return str(made.getClass().getSimpleName())


@pytest.mark.parametrize("checkpoint", ["out/checkpoint", "file:///out/checkpoint"])
def test_a_local_checkpoint_is_written_without_readlink(
    session: SparkSession, checkpoint: str
) -> None:
    assert manager(session, checkpoint) == SPARKS
    assert manager(session_for_pipeline(session, checkpoint), checkpoint) == OURS


def test_a_local_checkpoint_has_no_checksums_and_what_the_session_writes_has_them(
    session: SparkSession, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    own = session_for_pipeline(session, checkpoint)
    with without_checksums(own):
        query = (
            own.readStream.format("rate")
            .load()
            .writeStream.foreachBatch(lambda *_: None)
            .start(checkpointLocation=checkpoint)
        )
        query.processAllAvailable()
    query.stop()
    assert list(Path(checkpoint, "commits").glob("0"))
    assert not list(Path(checkpoint).rglob(".*.crc"))
    own.range(1).write.json(str(tmp_path / "written"))
    assert list(Path(tmp_path, "written").glob(".*.crc"))


@pytest.mark.parametrize("checkpoint", ["hdfs://there/checkpoint", "gs://bucket/checkpoint"])
def test_the_choice_for_other_file_systems_is_sparks(
    session: SparkSession, checkpoint: str
) -> None:
    assert session_for_pipeline(session, checkpoint).conf.get(SETTING, None) is None


def test_a_users_own_choice_wins(session: SparkSession) -> None:
    jsc: Any = session._jsc
    theirs = f"org.apache.spark.sql.execution.streaming.checkpointing.{SPARKS}"
    jsc.sc().conf().set(SETTING, theirs)
    try:
        assert manager(session_for_pipeline(session, "out/checkpoint"), "out/checkpoint") == SPARKS
    finally:
        jsc.sc().conf().remove(SETTING)


def test_a_session_that_is_stopped_leaves_no_jvm(
    session: SparkSession, shared_spark: SharedSpark
) -> None:
    """A notebook may start and stop several."""
    jvm = jvm_process()
    assert jvm is not None
    shared_spark.stop()
    assert jvm.poll() is not None


def on_shared_host(folder: str) -> SparkSession:
    """Start Spark for one task at a time, as docs/security.md has it for a host that is shared."""
    (example,) = (block for block in blocks("security.md", "yaml") if "socket" in block)
    conf: dict[str, str] = yaml.safe_load(example)["spark"]["conf"]
    conf["spark.python.unix.domain.socket.dir"] = tempfile.mkdtemp(dir=folder)
    return with_one_slot(conf)


def socket_folder(spark: SparkSession) -> Path:
    return Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")


@pytest.fixture(scope="module")
def pipelines_spark(shared_spark: SharedSpark) -> Iterator[PipelinesSpark]:
    """Return the Spark of a process with pipelines, which leaves no socket behind."""
    shared_spark.stop()
    # pytest's folders have longer names than Spark takes.
    with tempfile.TemporaryDirectory() as folder:
        shared = PipelinesSpark(partial(on_shared_host, folder), stop_spark)
        yield shared
        of_last = socket_folder(shared.running().session)
        shared.stop()
        assert not list(of_last.iterdir())


def test_no_pipeline_waits_while_the_others_go_on(pipelines_spark: PipelinesSpark) -> None:
    """With one slot for three threads, a job waits for one job of each other thread at most."""
    spark = pipelines_spark.running().session
    ended: list[str] = []
    waited: list[int] = []

    def run_jobs(name: str) -> None:
        for _ in range(12):
            before = len(ended)
            spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(0.05))
            waited.append(len(ended) - before)
            ended.append(name)

    threads = [threading.Thread(target=run_jobs, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 36
    assert max(waited) <= 4


def stop_executor(spark: SparkSession) -> None:
    """Send Spark's local executor the message that ends it."""
    java: Any = spark._jvm
    jsc: Any = spark._jsc
    backend = jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("localEndpoint")
    field.setAccessible(True)
    stop = singleton(java.org.apache.spark.scheduler.local, "StopExecutor")
    field.get(backend).askSync(stop, java.scala.reflect.ClassTag.Any())


def stop_context(spark: SparkSession) -> None:
    jsc: Any = spark._jsc
    jsc.stop()


def test_a_spark_that_runs_no_job_any_more_is_started_anew(pipelines_spark: PipelinesSpark) -> None:
    for end, reason in (
        (stop_executor, "RejectedExecutionException"),
        (stop_context, "stopped SparkContext"),
    ):
        running = pipelines_spark.running()
        assert running.loss() is None
        end(running.session)
        assert reason in str(running.loss())
        # Of all that asks, one starts it.
        assert pipelines_spark.running() is pipelines_spark.running() is not running


def test_workers_have_sockets_instead_of_ports_as_documented(
    pipelines_spark: PipelinesSpark,
) -> None:
    spark = pipelines_spark.running().session
    java = jvm_process()
    assert java is not None
    assert spark.range(4).select(F.udf(archives, "array<string>")("id")).toArrow().num_rows == 4
    workers = 0
    for process in psutil.Process(java.pid).children(recursive=True):
        # Some have ended.
        with suppress(psutil.Error):
            if "daemon" in " ".join(process.cmdline()):
                assert process.net_connections("tcp") == []
                workers += 1
    assert workers
    folder = socket_folder(spark)
    assert folder.stat().st_mode & 0o077 == 0
    assert [path for path in folder.iterdir() if path.is_socket()]
