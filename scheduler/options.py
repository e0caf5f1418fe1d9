"""The values with which the readers of the Spark source work.

A notebook gives them as options: see notebook_options. The program has checked its own settings,
and hands the values over whole, as one option.
"""

import base64
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from slackwater.reader.change_stream import ChangeStream
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.read_options import Reading, ReadOptions
from slackwater.sealing import seal

SPANNER_FORMAT: Final = "spanner_changes"
BIGTABLE_FORMAT: Final = "bigtable_changes"
_HANDED_OVER: Final = "handed_over"


class Address(Protocol):
    """The address of what is read."""

    @property
    def path(self) -> str:
        """The text that identifies it."""


A = TypeVar("A", bound=Address)


@dataclass(frozen=True, slots=True)
class SourceOptions(Generic[A]):
    """The values that a reader of the Spark source works with.

    Attributes:
        change_stream: the change stream to read: of Spanner's, or a table's of Bigtable's.
        pipeline: keys the metadata store.
        state_url: SQLAlchemy URL of the metadata store, which may be sealed.
        keep_ns: how long finished partitions are kept in the store.
        start: "now", "earliest" or the low watermark to start after, in nanoseconds.
        end_ns: the last low watermark, None for none.
        span_max_ns: the longest span of an epoch.
        reading: how an epoch's records come from Spanner.
        reader_memory_bytes: how many bytes of records may wait in a reader process.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        read: how tasks read.
        span_target: bounds epochs by the recorded ones; None if none are recorded.
        tasks_max: Spark tasks an epoch, at most.
        table: the table whose changes are read in typed columns; None for the records of all.
        is_state_lasting: False if the store is a temporary file of this query's own.
        generation: the generation of the lease under which the query runs; None without a lease.
        is_checkpoint_empty: True if the caller knows that the checkpoint is new; None if it does
            not know.
        is_checkpoint_lost: True if the caller knows that the checkpoint was lost, and that
            start is the low watermark of the last epoch committed.
        checkpoint_ns: the low watermark at which the checkpoint's last epoch ends, if the caller
            knows it.
        caught_up_at_ns: the last low watermark, unless tables are being read again; None for none.
        begun_epoch_ns: where the next epoch has to end, because some of the output's tables have
            it; None if there is no such epoch.
        written_ns: the low watermark of the output's last commit, if the caller knows it.
    """

    change_stream: A
    pipeline: str
    state_url: str
    keep_ns: int
    start: str | int
    end_ns: int | None
    span_max_ns: int
    reading: Reading
    reader_memory_bytes: int
    heartbeat_ms: int
    read: ReadOptions
    span_target: SpanTarget | None = None
    tasks_max: int = 1
    table: str | None = None
    is_state_lasting: bool = True
    generation: int | None = None
    is_checkpoint_empty: bool | None = None
    is_checkpoint_lost: bool = False
    checkpoint_ns: int | None = None
    caught_up_at_ns: int | None = None
    begun_epoch_ns: int | None = None
    written_ns: int | None = None


# Those of a change stream of Spanner's.
StreamOptions = SourceOptions[ChangeStream]


def hand_over(options: SourceOptions[Any]) -> dict[str, str]:
    """Return the option by which the program's own queries get values.

    The store's URL may hold a password, and Spark shows options: it is sealed.
    """
    return to_option(replace(options, state_url=seal(options.state_url)))


def to_option(value: object) -> dict[str, str]:
    """Return a value of this program as an option of one of its sources."""
    return {_HANDED_OVER: base64.b64encode(pickle.dumps(value)).decode()}


def from_option(options: Mapping[str, str]) -> Any:
    """Return the value that to_option() was given; None if there is no such option.

    Args:
        options: as Spark hands them over; names in any case.
    """
    texts = (text for name, text in options.items() if name.lower() == _HANDED_OVER)
    text = next(texts, None)
    # As Spark itself carries the source from process to process.
    return None if text is None else pickle.loads(base64.b64decode(text))  # noqa: S301
