"""A new pipeline's start, over a source that is neither Spanner nor a simulation."""

from collections.abc import Sequence

import pytest

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import StartInFutureError
from slackwater.scheduler.read_options import EARLIEST, NOW
from slackwater.scheduler.start_position import check_start, first_watermark_ns
from slackwater.state.models import Partition
from tests.support.change_sources import PlannedSource

CLOCK_NS = 5_000_000


class FixedSource(PlannedSource):
    """A ChangeSource whose clock stands still; it notes for which times it was asked."""

    partition_mode = PartitionMode.IMMUTABLE_KEY_RANGE
    read_functions = ("",)

    def __init__(self) -> None:
        self.checks = 0
        self.asked_ns: list[int] = []

    def check(self) -> None:
        self.checks += 1

    def strong_read_timestamp_ns(self) -> int:
        return CLOCK_NS

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        self.asked_ns.append(at_ns)
        return [Partition("p", at_ns)]

    def earliest_start_ns(self) -> int:
        return 2_000_000


def test_now_is_the_last_low_watermark_before_the_source_s_clock() -> None:
    source = FixedSource()
    assert first_watermark_ns(NOW, source) == CLOCK_NS - 500
    assert source.checks == 1, "a stream that does not exist fails before anything is written"


def test_the_earliest_start_is_not_before_what_the_source_can_still_read() -> None:
    assert first_watermark_ns(EARLIEST, FixedSource()) == 2_000_500


def test_a_start_in_the_future_is_refused() -> None:
    with pytest.raises(StartInFutureError):
        first_watermark_ns(CLOCK_NS + 500, FixedSource())


def test_the_source_is_asked_whether_it_can_be_read_from_the_start() -> None:
    source = FixedSource()
    check_start(3_000_500, source)
    assert source.asked_ns == [3_000_500]
