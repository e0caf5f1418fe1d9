"""Restored or lost parts of a real pipeline: each row of the table in docs/reliability.md."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.demo.load import Load
from slackwater.errors import PartsDisagreeError
from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.resume_point import ResumePoint
from slackwater.pipeline.source import SourceHandle, source_options
from slackwater.pipeline.spark.checkpoint import put_aside, read_checkpoint
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Scan, ScanPart
from slackwater.state.scans import begin_scan, finish_chunk, finish_scan
from slackwater.state.store import Store
from slackwater.testing.emulator import Emulator
from slackwater.timestamp import datetime_to_ns
from tests.proofs.restores import Part, Restorable, copy_store, go_on, restore_store
from tests.support import services
from tests.support.emulators import database_on
from tests.support.epoch_rows import frame, inserts, low_watermark, make_sink, write

LONG = pytest.mark.long
WENT_ON, REFUSED = "went on", "refused, remedy carried out"
STORE, CHECKPOINT, OUTPUT = Part
# Only a gap makes it look at the change stream.
NO_SOURCE = cast("SourceHandle", None)
# Each test reads all of them, from the first on.
PARTITION_ALIVE_S = 20


@pytest.fixture(scope="module")
def spark(emulator: Emulator, session: SparkSession) -> SparkSession:
    # The JVM may be older than the emulator: what it starts has this environment over its own.
    session.sparkContext.environment.update(emulator.environment())
    return session


class Restored:
    """A pipeline that has caught up, and a copy of all its parts from before its last epochs."""

    def __init__(self, pipeline: Restorable, copies: Path) -> None:
        self.pipeline = pipeline
        self._copies = copies
        self._load = Load(pipeline.stream, Dialect.GOOGLE_STANDARD_SQL, seed=7)
        self._count = 0

    def write(self) -> None:
        for _ in range(20):
            self._load.transaction()

    @property
    def copy(self) -> Path:
        return self._copies / str(self._count)

    def go_ahead(self) -> None:
        """Copy all parts, then commit further epochs."""
        self._count += 1
        self.pipeline.copy(self.copy)
        self.write()
        self.pipeline.run()
        self.write()


@pytest.fixture(scope="module")
def restored(
    emulator: Emulator, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restored]:
    folder = tmp_path_factory.mktemp("restored")
    pipeline = Restorable(spark, database_on(emulator), folder, f"sqlite:///{folder / 'state.db'}")
    pipeline.run()
    yield Restored(pipeline, folder / "copies")
    pipeline.close()


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([STORE], WENT_ON),
        ([OUTPUT], REFUSED),
        # `python -m tests.proofs.restores` has these, too, and the rule is tested without Spark.
        pytest.param([CHECKPOINT], REFUSED, marks=LONG),
        pytest.param([STORE, CHECKPOINT], REFUSED, marks=LONG),
        pytest.param([STORE, OUTPUT], REFUSED, marks=LONG),
        pytest.param([CHECKPOINT, OUTPUT], REFUSED, marks=LONG),
        pytest.param([STORE, CHECKPOINT, OUTPUT], WENT_ON, marks=LONG),
    ],
)
def test_an_older_part_doubles_nothing_and_loses_nothing(
    restored: Restored, parts: list[Part], outcome: str
) -> None:
    restored.go_ahead()
    restored.pipeline.restore(parts, restored.copy)
    assert go_on(restored.pipeline) == outcome
    restored.pipeline.require_equal()


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([STORE], WENT_ON),
        pytest.param([CHECKPOINT], REFUSED, marks=LONG),
        pytest.param([STORE, CHECKPOINT], REFUSED, marks=LONG),
    ],
)
def test_a_lost_part_doubles_nothing_and_loses_nothing(
    restored: Restored,
    parts: list[Part],
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty_url = f"sqlite:///{tmp_path / 'empty.db'}"
    Store.open(empty_url, migrate=True).close()
    (tmp_path / STORE).mkdir()
    copy_store(empty_url, tmp_path / STORE)
    restored.write()
    if CHECKPOINT not in parts:
        # By now it is before the retention period, and the checkpoint after it.
        settings = restored.pipeline.settings
        source = settings.source.model_copy(update={"start": "1999-01-01T00:00:00Z"})
        long_ago = settings.model_copy(update={"source": source})
        monkeypatch.setattr(restored.pipeline, "settings", long_ago)
    restored.pipeline.restore(parts, tmp_path)
    assert go_on(restored.pipeline) == outcome
    restored.pipeline.require_equal()


def empty(pipeline: Restorable) -> None:
    shutil.rmtree(pipeline.folder / OUTPUT)


def tear(pipeline: Restorable) -> None:
    offsets = pipeline.folder / CHECKPOINT / "offsets"
    max(offsets.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


def give_away(pipeline: Restorable) -> None:
    log = pipeline.folder / OUTPUT / "_watermarks"
    for path in log.rglob("*.json"):
        lines = [json.loads(line) | {"pipeline": "users"} for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (empty, "the output is empty"),
        (tear, "last epochs is missing or empty"),
        (give_away, "the output is another pipeline's"),
    ],
)
def test_what_can_not_be_known_is_refused(
    restored: Restored, damage: Callable[[Restorable], None], reason: str, tmp_path: Path
) -> None:
    restored.pipeline.copy(tmp_path)
    damage(restored.pipeline)
    with pytest.raises(PartsDisagreeError, match=reason):
        restored.pipeline.run()
    # For the tests after this one.
    restored.pipeline.restore(list(Part), tmp_path)


def remove_plan(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "3").unlink()


def remove_plan_before(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "2").unlink()


def empty_plan(checkpoint: Path) -> None:
    (checkpoint / "offsets" / "3").write_text("")


def empty_commit(checkpoint: Path) -> None:
    (checkpoint / "commits" / "3").write_bytes(bytes(5))


@pytest.mark.parametrize(
    "damage", [None, remove_plan, remove_plan_before, empty_plan, empty_commit]
)
def test_a_checkpoint_from_which_spark_can_not_go_on_is_put_aside(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None] | None
) -> None:
    """A copy that was made while it was written, or a disk after a power cut."""
    checkpoint = tmp_path / "checkpoint"
    for log, text in (("offsets", 'v1\n{}\n{"low_watermark": null}'), ("commits", "v1\n{}")):
        (checkpoint / log).mkdir(parents=True)
        for epoch in range(1, 4):
            (checkpoint / log / str(epoch)).write_text(text)
    if damage is not None:
        damage(checkpoint)
    read = read_checkpoint(spark, str(checkpoint))
    assert read is not None
    assert read.is_whole == (damage is None)
    aside = put_aside(spark, str(checkpoint))
    assert [str(path) for path in tmp_path.iterdir()] == [aside]
    assert put_aside(spark, str(checkpoint)) is None


def settings_in(folder: Path, **source: str) -> Settings:
    stream = ChangeStream("test-project", "test-instance", "db", "Changes")
    values = services.settings(stream, folder, "now")
    values["source"] |= source
    return Settings(**values)


def test_a_new_checkpoint_begins_again_if_its_query_failed_before_the_first_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The operator has said what to do, and need not say it for each failure of Spanner's."""
    settings = settings_in(tmp_path)
    sink, store = make_sink(tmp_path / "changes"), Store.open(settings.state.url, migrate=True)
    sink.position(spark)
    write(spark, sink, 7, inserts(1, at=1))
    options = source_options(settings, {})
    resume = ResumePoint(spark, settings, store, sink, options)
    store.ensure_pipeline("orders", options.change_stream.path)
    lease = acquire_lease(store, "orders", "owner", read_lease(store, "orders"))
    assert lease is not None
    with pytest.raises(PartsDisagreeError, match="the checkpoint is empty"):
        resume.source_options(NO_SOURCE, Recovery(), lease.generation)
    # Some of a lost checkpoint may be left, on which Spark would stumble later.
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    first = resume.source_options(NO_SOURCE, Recovery(from_watermark="last"), lease.generation)
    assert not (tmp_path / "checkpoint").exists()
    assert first.start == datetime_to_ns(low_watermark(7)) + 500
    assert first.is_checkpoint_empty
    assert first.is_checkpoint_lost
    again = resume.source_options(NO_SOURCE, Recovery(), lease.generation)
    assert again == first
    store.close()


@pytest.mark.parametrize(
    "left",
    [{"0": bytes(100)}, {".0.4711.tmp": b"v1\n", "..0.4711.tmp.crc": b"crc"}],
    ids=["power cut", "full disk"],
)
def test_a_blank_plan_of_the_very_first_epoch_is_put_aside(
    left: dict[str, bytes], spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing was written: there is nothing to decide for an operator."""
    settings = settings_in(tmp_path)
    sink, store = make_sink(tmp_path / "changes"), Store.open(settings.state.url, migrate=True)
    options = source_options(settings, {})
    resume = ResumePoint(spark, settings, store, sink, options)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for name, content in left.items():
        (offsets / name).write_bytes(content)
    first = resume.source_options(NO_SOURCE, Recovery(), generation=1)
    assert first.is_checkpoint_empty
    assert not offsets.exists()
    store.close()


def test_an_output_that_was_emptied_during_its_initial_scan_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An operator who wants to begin again may forget the metadata store."""
    settings = settings_in(tmp_path, initial_scan="yes")
    sink, store = make_sink(tmp_path / "changes"), Store.open(settings.state.url, migrate=True)
    options = source_options(settings, {})
    store.ensure_pipeline("orders", options.change_stream.path)
    scan = Scan("orders", datetime_to_ns(low_watermark(1)) + 500, "", b"", "[]")
    begin_scan(store, scan, [ScanPart(n, n, "sales.Orders", b"") for n in range(2)])

    def is_new() -> bool:
        return ResumePoint(spark, settings, store, sink, options).is_new(NO_SOURCE, Recovery())

    assert is_new()
    rows = frame(spark, [inserts(1, at=1)])
    finish_chunk(store, "orders", 0, records=sink.add_scanned(rows, 0, low_watermark(1)))
    assert is_new()
    shutil.rmtree(tmp_path / "changes")
    with pytest.raises(PartsDisagreeError, match="lacks rows that the initial scan has written"):
        is_new()
    sink.add_scanned(rows, 0, low_watermark(1))
    sink.add_scanned(rows, 1, low_watermark(1))
    finish_chunk(store, "orders", 1, records=1)
    sink.end_scan(spark, 2, low_watermark(1))
    finish_scan(store, "orders")
    assert is_new()
    shutil.rmtree(tmp_path / "changes" / "_watermarks")
    with pytest.raises(PartsDisagreeError, match="lacks rows that the initial scan has written"):
        is_new()
    store.close()


def test_an_initial_scan_does_not_begin_in_an_output_that_has_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The metadata store was lost in the middle of the scan."""
    settings = settings_in(tmp_path, initial_scan="yes")
    sink, store = make_sink(tmp_path / "changes"), Store.open(settings.state.url, migrate=True)
    sink.position(spark)
    sink.add_scanned(frame(spark, [inserts(1, at=1)]), 0, low_watermark(1))
    options = source_options(settings, {})
    with pytest.raises(PartsDisagreeError, match="its initial scan has not begun"):
        ResumePoint(spark, settings, store, sink, options).is_new(NO_SOURCE, Recovery())
    store.close()


def test_a_store_that_goes_back_while_the_pipeline_runs_doubles_nothing(restored: Restored) -> None:
    """A failover to a replica that lacks the last seconds."""
    pipeline = restored.pipeline
    with pipeline.running():
        pipeline.wait_for_epochs(1)
        replica = restored.copy / "replica"
        replica.mkdir(parents=True)
        copy_store(pipeline.store_url, replica)
        for _ in range(3):
            restored.write()
            pipeline.wait_for_epochs(1)
        restore_store(pipeline.store_url, replica)
        restored.write()
        pipeline.wait_for_epochs(2)
    pipeline.run()
    pipeline.require_equal()
