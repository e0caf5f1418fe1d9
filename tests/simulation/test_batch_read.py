"""A batch read: its slices are its cut, and together they hold each record of it once."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import StartInFutureError, StartTooOldError
from slackwater.reader.schema import SCHEMA
from slackwater.scheduler import batch_read
from slackwater.scheduler.batch_read import cut_to_read, read_slice, slices
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.epoch import Cut, is_watermark
from slackwater.scheduler.errors import AuditError, OptionError
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.spark.data_source import SpannerChangesDataSource
from slackwater.state.models import Partition
from slackwater.state.store import Store
from slackwater.timestamp import datetime_to_us, format_rfc3339, us_to_ns
from slackwater.worker_errors import WorkerError
from tests.simulation.history import STEP_NS, random_history
from tests.simulation.mutable_history import PLACEMENTS, random_mutable_history
from tests.simulation.mutable_world import MutableStream
from tests.simulation.world import Faults, SimulatedQuery, SimulatedStream
from tests.unit.scheduler.test_start_position import CLOCK_NS, FixedSource

NAMES = {"project": "shop", "instance": "main", "database": "shop", "change_stream": "S"}
NO_FAULTS = Faults(random.Random(0), 0)


def options(**texts: str) -> StreamOptions:
    return parse_options({**NAMES, "state_url": "sqlite:///unused.db", **texts}, {})


def between(start_ns: int, end_ns: int) -> StreamOptions:
    return options(start=format_rfc3339(start_ns), end=format_rfc3339(end_ns))


@given(st.integers(0, 10**16), st.integers(1, 10**16), st.integers(1, 300))
def test_slices_follow_one_another_and_are_about_equal(
    start_us: int, span_us: int, count_max: int
) -> None:
    cut = Cut(start_us * 1_000 + 500, (start_us + span_us) * 1_000 + 500)
    parts = slices(cut, count_max=count_max)
    assert (parts[0].start_ns, parts[-1].end_ns) == (cut.start_ns, cut.end_ns)
    assert all(part.end_ns == after.start_ns for part, after in pairwise(parts))
    assert all(is_watermark(part.end_ns) for part in parts)
    spans_ns = [part.end_ns - part.start_ns for part in parts]
    assert max(spans_ns) - min(spans_ns) <= 2_000
    assert len(parts) <= count_max
    if len(parts) > 1:
        assert min(spans_ns) >= batch_read.SLICE_NS_MIN - 1_000
    if len(parts) < count_max:
        assert (cut.end_ns - cut.start_ns) // (len(parts) + 1) < batch_read.SLICE_NS_MIN


def test_the_cut_holds_what_was_committed_at_its_start_and_at_its_end() -> None:
    source = FixedSource()
    cut = cut_to_read(between(3_000_000, 4_000_000), source)
    assert (cut.contains(3_000_000), cut.contains(4_000_000)) == (True, True)
    assert (cut.contains(2_999_000), cut.contains(4_001_000)) == (False, False)
    assert source.asked_ns == [cut.start_ns]
    earliest = cut_to_read(options(start="earliest", end=format_rfc3339(CLOCK_NS)), source)
    assert earliest == Cut(2_000_500, CLOCK_NS + 500)


@pytest.mark.parametrize(
    ("texts", "error", "said"),
    [
        ({"start": "earliest"}, OptionError, "needs the option end. Set it to a time"),
        ({"end": format_rfc3339(CLOCK_NS)}, OptionError, "needs the option start"),
        ({"start": "now", "end": format_rfc3339(CLOCK_NS)}, OptionError, "can't be now"),
        (
            {"start": "earliest", "end": format_rfc3339(CLOCK_NS + 1_000)},
            OptionError,
            "lies after Spanner's clock",
        ),
        (
            {"start": format_rfc3339(CLOCK_NS + 1_000), "end": "2999-01-01T00:00:00Z"},
            StartInFutureError,
            "lies after the source's clock",
        ),
        (
            {"start": "earliest", "end": format_rfc3339(1_000_000)},
            StartTooOldError,
            "before the earliest time that can be read, 1970-01-01T00:00:00.002001",
        ),
        (
            {"start": format_rfc3339(3_000_200), "end": format_rfc3339(3_000_900)},
            OptionError,
            "no commit timestamp can lie between",
        ),
        (
            {"start": format_rfc3339(1_000_000), "end": format_rfc3339(CLOCK_NS)},
            StartTooOldError,
            "too old",
        ),
    ],
)
def test_bounds_that_can_t_be_read_are_refused(
    texts: dict[str, str], error: type[Exception], said: str
) -> None:
    class Retaining(FixedSource):
        def partitions_alive(
            self, at_ns: int, functions: Sequence[str] | None = None
        ) -> Sequence[Partition]:
            if at_ns < self.earliest_start_ns():
                raise StartTooOldError("too old")
            return super().partitions_alive(at_ns)

    with pytest.raises(error, match=said) as caught:
        cut_to_read(options(**texts), Retaining())
    assert caught.value.user_error  # type: ignore[attr-defined]


def test_a_read_without_an_end_is_refused_before_spanner_is_asked() -> None:
    schema = StructType([StructField(name, StringType()) for name in SCHEMA.names])
    with pytest.raises(WorkerError, match="needs the option end") as caught:
        SpannerChangesDataSource({**NAMES, "start": "earliest"}).reader(schema)
    assert caught.value.record.user_error
    with pytest.raises(WorkerError, match="has a fixed schema"):
        SpannerChangesDataSource(dict(NAMES)).reader(StructType([]))


class Process:
    """A process that never gives way."""

    def pause(self) -> None:
        pass


class Source:
    """A simulated stream whose queries run in real threads."""

    def __init__(self, stream: SimulatedStream | MutableStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        records = self._stream.records(token, start_ns, end_ns, function)
        return SimulatedQuery(records, Process(), NO_FAULTS, lambda: None)  # type: ignore[arg-type]


def world(mode: PartitionMode, seed: int) -> SimulatedStream | MutableStream:
    choose = random.Random(seed)
    if mode is PartitionMode.MUTABLE_KEY_RANGE:
        functions = ("",) if seed % 2 else PLACEMENTS
        return MutableStream(random_mutable_history(choose, functions=functions), 0, seed, 0.5)
    return SimulatedStream(random_history(choose), 0, seed, 0.5)


@pytest.mark.parametrize("mode", PartitionMode)
def test_slices_hold_each_record_of_the_cut_once_whatever_ends_are_withheld(
    mode: PartitionMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_read, "SLICE_NS_MIN", STEP_NS)
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    records = parts = 0
    for seed in range(8):
        stream = world(mode, seed)
        last = stream.history.end_ns // STEP_NS
        stream.clock_ns = (last + 8) * STEP_NS
        choose = random.Random(seed)
        first = choose.randrange(1, last)
        whole = between(first * STEP_NS, choose.randrange(first, last + 1) * STEP_NS)
        cut = cut_to_read(whole, Source(stream))
        rows = []
        for part in slices(cut, count_max=choose.randint(1, 4)):
            parts += 1
            of_slice = replace(whole, pipeline=f"slice-{parts}")
            for batch in read_slice(part, of_slice, Source(stream), store):
                rows += row_keys(batch.to_pylist())
        assert sorted(rows) == sorted(stream.expected(cut.start_ns, cut.end_ns)), seed
        records += len(rows)
    store.close()
    assert records > 50


def row_keys(rows: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Return token, time and record_sequence, as expected() does."""
    times_us = [datetime_to_us(row["commit_timestamp"]) for row in rows]
    return [
        (row["partition_token"], us_to_ns(time_us), row["record_sequence"])
        for row, time_us in zip(rows, times_us, strict=True)
    ]


def test_a_slice_that_lacks_a_record_of_a_transaction_fails(tmp_path: Path) -> None:
    class Losing(Source):
        def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
            records = self._stream.records(token, start_ns, end_ns, function)
            lost = next((r for r in records if hasattr(r, "mods")), None)
            left = [record for record in records if record is not lost]
            return SimulatedQuery(left, Process(), NO_FAULTS, lambda: None)  # type: ignore[arg-type]

    stream = world(PartitionMode.IMMUTABLE_KEY_RANGE, 3)
    stream.clock_ns = stream.history.end_ns + 8 * STEP_NS
    cut = Cut(STEP_NS - 500, stream.history.end_ns + 500)
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)

    def read(source: Source, name: str) -> list[Any]:
        return list(read_slice(cut, replace(options(), pipeline=name), source, store))

    assert read(Source(stream), "whole")
    with pytest.raises(AuditError, match="transaction"):
        read(Losing(stream), "losing")
    store.close()
