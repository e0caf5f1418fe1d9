"""Tables that a mirror lacks are read again between epochs, with the emulator's rows and changes.

The epochs are read in this process. In place of a kill, another owner goes on: with
a new sink, a new rescanner and a new planner, under a new lease.
"""

import itertools
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import deltalake
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from slackwater.commands.continuous_verification import ContinuousVerification, Finding
from slackwater.commands.verify import MirrorSource
from slackwater.config.filters import filter_of
from slackwater.config.settings import Settings
from slackwater.pipeline.epochs import rescanner
from slackwater.pipeline.source import connect
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.key_range_read import ReadLimits
from slackwater.spark_sink.sinks.mirrors import MirrorSettings
from slackwater.state.rescan_models import NEW_TABLE, REPAIR, REQUESTED, Rescan, RescanState
from slackwater.state.rescans import record_rescan, request_rescans, rescans
from slackwater.state.store import Store
from slackwater.state.verified_models import proof
from slackwater.state.verified_tables import verified_tables
from slackwater.testing.emulator_database import update_ddl
from tests.proofs.mirrors import KINDS, MORE_KINDS, Kind, mirror_settings
from tests.proofs.rescans import NEW, WATCHED, ddl, insert_many
from tests.spark.pipeline_owner import Owner
from tests.support import mixed_load
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.support.mirror_looks import Looker, at_watermark
from tests.support.mixed_load import MixedLoad
from tests.support.services import settings as settings_of

EPOCHS_MAX: Final = 80
# So few that each table has several chunks.
ROWS_A_CHUNK: Final = 40
PARTITION_ALIVE_S = 20


def run(
    spark: SparkSession, stream: ChangeStream, kind: Kind, folder: Path, *, changes: int
) -> list[Rescan]:
    """Have all tables read again, and the new one; return the requests."""
    dialect, _, deletes, table_format = kind
    load = MixedLoad(stream, dialect, seed=4)
    while load.changes < 100:
        load.transaction()
    insert_many(stream, 100)
    values = mirror_settings(stream, folder, 0, deletes, table_format)
    values["source"] |= {"start": "now", "initial_scan": "no", "new_tables": "scan"}
    settings = Settings.model_validate(values)
    choice, looker = random.Random(5), Looker(folder / "mirrors", stream, dialect)
    connection = connect(settings).connection
    loop = EpochLoop(stream, settings.state.url, start_ns=connection.strong_read_timestamp_ns())
    connection.close()
    loop.epoch()
    owner = Owner(spark, settings, loop)
    try:
        for number in range(EPOCHS_MAX):
            for _ in range(changes):
                load.transaction()
            if number == 1:
                with verification(spark, settings, loop.store) as verifying:
                    assert_differences_are_found(list(verifying.round()), loop.store)
                repaired = {one.table for one in rescans(loop.store, "orders")}
                others = [name for name in WATCHED if name not in repaired]
                request_rescans(loop.store, [Rescan("orders", one, 1, REQUESTED) for one in others])
            dies = choice.random() < 0.2
            owner.epoch(number, dies=dies)
            if dies:
                resumed = EpochLoop(stream, settings.state.url, start_ns=0, resume=owner.loop)
                owner.close()
                loop, owner = resumed, Owner(spark, settings, resumed)
            listed = rescans(loop.store, "orders")
            is_done = all(one.state is RescanState.DONE for one in listed)
            if is_done and len(listed) == len(WATCHED):
                quote = '"' if dialect is Dialect.POSTGRESQL else ""
                name = f"{quote}{mixed_load.CHANGE_STREAM}{quote}"
                update_ddl(stream, [f"ALTER CHANGE STREAM {name} SET FOR ALL"])
            elif is_done and listed:
                break
            elif any(one.reason == NEW_TABLE for one in listed):
                # It is not complete yet, and says so.
                assert at_watermark(folder / "mirrors" / NEW) is None
        owner.epoch(EPOCHS_MAX, dies=False)
        looker.look_at_the_end(rows_min=0)
        with verification(spark, settings, loop.store) as verifying:
            findings = list(verifying.round())
            proved = proof(verified_tables(loop.store, "orders"), loop.watermark_ns)
            assert {one.table for one in findings} == {*WATCHED, NEW}
            assert not any(one.different for one in findings)
            # The tables that could not be compared before.
            assert not proved.different
            assert proved.equal_at_ns is not None
        return rescans(loop.store, "orders")
    finally:
        owner.close()


class Hurried(threading.Event):
    """An event that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


@contextmanager
def verification(
    spark: SparkSession, settings: Settings, store: Store
) -> Iterator[ContinuousVerification]:
    """Yield what `verify --continuous --repair` does, in the tests' session."""
    assert isinstance(settings.sink, MirrorSettings)
    handle = connect(settings)
    try:
        source = MirrorSource(
            spark,
            handle,
            (),
            settings.sink.tables(settings.pipeline),
            settings.sink,
            filter_of(settings),
        )
        yield ContinuousVerification(source, settings, store, Hurried(), (), repair=True)
    finally:
        handle.connection.close()


def assert_differences_are_found(findings: Sequence[Finding], store: Store) -> None:
    """The mirror of Singers lacks the hundred rows that no change record has."""
    ends = {one.table: one for one in findings if one.is_round}
    slices = [one for one in findings if one.table == mixed_load.SINGERS and not one.is_round]
    assert ends[mixed_load.SINGERS].different == sum(one.different for one in slices) >= 100
    assert len(slices) >= 2
    assert all(one.keys for one in slices)
    assert mixed_load.SINGERS in proof(verified_tables(store, "orders"), 2**62).different
    requested = {one.table: one.reason for one in rescans(store, "orders")}
    assert requested[mixed_load.SINGERS] == REPAIR


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:] + MORE_KINDS)],
    ids=str,
)
def test_mirrors_that_lack_rows_are_their_tables_after_a_rescan(
    kind: Kind,
    session: SparkSession,
    new_database: NewDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slackwater.pipeline.epochs.rescanner.FIRST_ROWS", ROWS_A_CHUNK)
    # Otherwise the new table's would not be stated for up to a minute.
    monkeypatch.setattr("slackwater.spark_sink.sinks.mirrors._PUBLISH_ALL_EVERY_S", 0.0)
    slices = ReadLimits(ROWS_A_CHUNK, 1 << 20, 10.0)
    monkeypatch.setattr("slackwater.commands.continuous_verification._SLICE", slices)
    monkeypatch.setattr(
        "slackwater.pipeline.epochs.rescanner.next_rows", lambda rows, seconds: rows
    )
    dialect, capture, *_ = kind
    stream = new_database(dialect, ddl(dialect, capture), mixed_load.CHANGE_STREAM)
    by_table = {one.table: one for one in run(session, stream, kind, tmp_path, changes=3)}
    assert by_table.keys() == {*WATCHED, NEW}
    assert all(one.state is RescanState.DONE for one in by_table.values())
    for name in (mixed_load.SINGERS, NEW):
        # The rows that no transaction changed are in no record.
        assert by_table[name].corrected >= 100
        assert by_table[name].chunks >= 3
        assert by_table[name].records >= 100


def test_a_new_table_that_is_dropped_while_it_is_read_leaves_the_mirrors_complete(
    session: SparkSession,
    new_database: NewDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rescanner, "FIRST_ROWS", ROWS_A_CHUNK)
    monkeypatch.setattr(rescanner, "next_rows", lambda rows, _seconds: rows)
    dialect, capture, deletes, table_format = KINDS[0]
    stream = new_database(dialect, ddl(dialect, capture), mixed_load.CHANGE_STREAM)
    insert_many(stream, 100)
    values = mirror_settings(stream, tmp_path, 0, deletes, table_format)
    values["source"] |= {"start": "now", "initial_scan": "no", "new_tables": "scan"}
    settings = Settings.model_validate(values)
    connection = connect(settings).connection
    loop = EpochLoop(stream, settings.state.url, start_ns=connection.strong_read_timestamp_ns())
    connection.close()
    loop.epoch()
    owner = Owner(session, settings, loop)
    sink: Any = owner._sink
    numbers = iter(range(EPOCHS_MAX))

    def incomplete_after_epoch() -> Any:
        owner.epoch(next(numbers), dies=False)
        return sink._watermarks.last().incomplete

    def read() -> Rescan:
        [rescan] = rescans(loop.store, "orders")
        return rescan

    try:
        assert incomplete_after_epoch() == frozenset()
        update_ddl(stream, [f"ALTER CHANGE STREAM {mixed_load.CHANGE_STREAM} SET FOR ALL"])
        while not (rescans(loop.store, "orders") and read().corrected):
            # A chunk's rows are corrected with the epoch after it.
            owner.epoch(next(numbers), dies=False)
        assert incomplete_after_epoch() == {NEW}
        update_ddl(stream, [f"DROP TABLE {NEW}"])
        while read().state is RescanState.RUNNING:
            owner.epoch(next(numbers), dies=False)
        assert incomplete_after_epoch() == frozenset()
        # Its mirror stays as it is.
        assert NEW in {one.table for one in sink.as_of(session, None).tables}
    finally:
        owner.close()


class DeathError(Exception):
    """The owner dies here."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "sink_kind", ["changelog", pytest.param("changelogs", marks=pytest.mark.long)]
)
def test_a_changelog_gets_the_rows_of_a_rescan_once(
    sink_kind: str,
    session: SparkSession,
    new_database: NewDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Owners die before and after a chunk is visible; the next one reads more rows at once."""
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect, mixed_load.ddl(dialect, "NEW_ROW"), mixed_load.CHANGE_STREAM)
    insert_many(stream, 100)
    values = settings_of(stream, tmp_path, "now")
    values["sink"] |= {"kind": sink_kind, "path": str(tmp_path / "out")}
    settings = Settings.model_validate(values)
    connection = connect(settings).connection
    loop = EpochLoop(stream, settings.state.url, start_ns=connection.strong_read_timestamp_ns())
    connection.close()
    loop.epoch()
    names = (mixed_load.SINGERS, NEW)
    request_rescans(loop.store, [Rescan("orders", name, 1, REQUESTED) for name in names])
    load = MixedLoad(stream, dialect, seed=4)
    owner = Owner(session, settings, loop)
    rows = itertools.cycle([7, 40, 13, 60, 30])

    def dying(store: Store, rescan: Rescan, *, generation: int) -> bool:
        is_visible = rescan.pending_at_ns is None
        if is_visible and number % 4 == 1:
            raise DeathError
        is_recorded = record_rescan(store, rescan, generation=generation)
        if not is_visible and number % 4 == 3:
            raise DeathError
        return is_recorded

    monkeypatch.setattr(rescanner, "record_rescan", dying)
    monkeypatch.setattr(rescanner, "next_rows", lambda _rows, _seconds: next(rows))
    is_done = False
    for number in range(EPOCHS_MAX):
        load.transaction()
        monkeypatch.setattr(rescanner, "FIRST_ROWS", next(rows))
        try:
            owner.epoch(number, dies=False)
            # The epoch is replayed, as if Spark had not committed it.
            owner.rescanner.published(owner.loop.watermark_ns or 0)
        except DeathError:
            resumed = EpochLoop(stream, settings.state.url, start_ns=0, resume=owner.loop)
            owner.close()
            owner = Owner(session, settings, resumed)
        listed = rescans(owner.loop.store, "orders")
        is_done = all(one.state is RescanState.DONE for one in listed)
        if is_done:
            break
    owner.close()
    assert is_done
    singers, notes = (scanned_keys(tmp_path / "out", sink_kind, name) for name in names)
    assert sorted(key for key in map(int, singers) if key < 0) == list(range(-100, 0))
    many = sorted(f"many {number}" for number in range(100))
    assert sorted(key for key in notes if str(key).startswith("many")) == many


def scanned_keys(folder: Path, sink_kind: str, name: str) -> list[Any]:
    """Return the keys of a table's rows that belong to no transaction."""
    if sink_kind == "changelogs":
        table = deltalake.DeltaTable(folder / name).to_pyarrow_table()
        rows = table.filter(pc.equal(table.column("server_transaction_id"), "")).to_pylist()
        return [row["key"]["Id"] for row in rows]
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    of_table = pc.and_(
        pc.equal(table.column("server_transaction_id"), ""),
        pc.equal(table.column("table_name"), name),
    )
    rows = table.filter(of_table).to_pylist()
    return [json.loads(mod["keys"])["Id"] for row in rows for mod in row["mods"]]
