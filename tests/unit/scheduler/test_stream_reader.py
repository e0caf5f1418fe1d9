"""What Spark is told about the epochs of a query, in the orders in which it asks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.errors import StartTooOldError
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.spark.epochs_reader import Offset
from slackwater.scheduler.spark.stream_reader import SpannerChangesStreamReader
from slackwater.state.commit import restart_at
from slackwater.state.gaps import gaps, record_gap
from slackwater.state.models import Gap, Partition
from slackwater.state.store import Store
from slackwater.timestamp import parse_rfc3339
from tests.support.change_sources import PlannedSource

WATERMARK_NS = parse_rfc3339("2026-01-31T09:00:00.1234565Z")
SECOND_NS = 10**9


class Source(PlannedSource):
    """A change stream whose records before a time are gone."""

    dialect = Dialect.GOOGLE_STANDARD_SQL
    partition_mode = PartitionMode.IMMUTABLE_KEY_RANGE
    read_functions = ("",)

    def __init__(self, earliest_ns: int = 0) -> None:
        self.earliest_ns = earliest_ns

    def strong_read_timestamp_ns(self) -> int:
        return WATERMARK_NS + 100 * SECOND_NS

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        if at_ns < self.earliest_ns:
            raise StartTooOldError("the records at the start are gone.", "")
        return [Partition("a", at_ns)]

    def earliest_start_ns(self) -> int:
        return self.earliest_ns


def new_reader(url: str, source: Source, **options: Any) -> SpannerChangesStreamReader:
    names = ("project", "instance", "database")
    of_all = {
        "change_stream": "Changes",
        **dict.fromkeys(names, "test-name"),
        "pipeline": "orders",
        "state_url": url,
    }
    reader = SpannerChangesStreamReader(replace(parse_options(of_all, {}), **options))
    reader._spanner = cast("SpannerSource", source)
    return reader


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


def restarted(url: str, source: Source) -> SpannerChangesStreamReader:
    """Return the reader of the query that `--from-watermark last` starts."""
    reader = new_reader(url, source)
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", reader._options.change_stream.path)
    restart_at(store, "orders", WATERMARK_NS, [])
    return new_reader(
        url, source, start=WATERMARK_NS, is_checkpoint_empty=True, is_checkpoint_lost=True
    )


@pytest.mark.parametrize("is_told", [False, True], ids=["Spark 4.1", "Spark 4.2"])
def test_the_first_epoch_of_a_new_checkpoint_has_no_records(url: str, *, is_told: bool) -> None:
    """So that it can be planned again by a process that does not know why it is there.

    With records it would end after the output does, and the checkpoint would not agree with it.
    """
    reader = restarted(url, Source())
    assert watermark_ns(latest(reader, is_told=is_told)) == WATERMARK_NS


def latest(reader: SpannerChangesStreamReader, *, is_told: bool) -> Offset:
    """Ask for the first epoch's end; Spark 4.2 says where it starts, 4.1 does not."""
    return reader.latestOffset(reader.initialOffset()) if is_told else reader.latestOffset()


def watermark_ns(offset: Offset) -> int:
    return parse_rfc3339(offset["low_watermark"])


def test_records_that_are_gone_can_be_skipped_before_the_first_commit(url: str) -> None:
    """A checkpoint was lost for longer than the retention, and a new one has begun."""
    source = Source(earliest_ns=WATERMARK_NS + 10 * SECOND_NS)
    reader = restarted(url, source)
    first = latest(reader, is_told=False)
    with pytest.raises(Exception, match="the records at the start are gone"):
        reader.partitions(reader.initialOffset(), first)
    store = Store.open(url, migrate=False)
    record_gap(store, Gap("orders", WATERMARK_NS, source.earliest_ns, 0))
    # The next process, as Spark repeats the epoch.
    reader = new_reader(url, source, checkpoint_ns=watermark_ns(first))
    assert reader.partitions(first, first) == []
    assert reader.partitions(reader.initialOffset(), first) == []
    after_gap = reader.latestOffset(first)
    assert watermark_ns(after_gap) == source.earliest_ns
    assert reader.partitions(first, after_gap) == []
    following = reader.latestOffset(after_gap)
    task: Any
    (task,) = reader.partitions(after_gap, following)
    assert [root.token for root in task.task.roots] == ["a"]
    assert gaps(store, "orders")
