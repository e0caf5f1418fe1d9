"""Reads of one partition from a synthetic Bigtable, over gRPC: ends, silence, stalls, refusals."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from slackwater.endpoint import plaintext
from slackwater.reader.bigtable.change_rows import rows_of
from slackwater.reader.bigtable.changes import Changes
from slackwater.reader.bigtable.partition_read import PartitionRead, ReadOutcome
from slackwater.reader.bigtable.positions import Position, Read, reads_of, starting_at
from slackwater.reader.bigtable.row_range import WHOLE_TABLE
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    ReaderError,
    StartInFutureError,
    StartTooOldError,
)
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.timestamp import us_to_ns
from tests.synthetic.bigtable.faults import Fault, Faults
from tests.synthetic.bigtable.history import History, Shape, Stall, generate
from tests.synthetic.bigtable.server import SyntheticBigtable

HEARTBEAT_MS = 200


def recent(seconds: float, seed: int = 1) -> History:
    """Return a history of the last seconds, of one tablet."""
    start_us = time.time_ns() // 1_000 - int(seconds * 1_000_000)
    shape = Shape(start_us=start_us, seconds=seconds, tablets=1, churn_per_s=0)
    return generate(seed, shape)


@contextmanager
def serving(history: History, faults: Faults | None = None) -> Iterator[BigtableService]:
    with SyntheticBigtable(history, faults) as server:
        table = BigtableTable("project", "instance", "table", endpoint=plaintext(server.host))
        service = BigtableService(table)
        yield service
        service.close()


def outcome_of(service: BigtableService, read: Read, end_us: int) -> ReadOutcome:
    return outcome_and_changes(service, read, end_us)[0]


def outcome_and_changes(
    service: BigtableService, read: Read, end_us: int, pause_s: float = 0.0
) -> tuple[ReadOutcome, int]:
    """Read a partition, with a pause after each delivery."""
    count = 0

    def deliver(changes: Changes) -> None:
        nonlocal count
        count += rows_of([changes], end_us).num_rows
        time.sleep(pause_s)

    outcome = PartitionRead(service, read, end_us, HEARTBEAT_MS, deliver).run()
    return outcome, count


def from_start(history: History) -> Read:
    [read] = reads_of(starting_at([WHOLE_TABLE], history.created_us))
    return read


def test_a_read_that_breaks_brings_each_change_once() -> None:
    history = recent(4)
    faults = Faults(3, share=0.7, kinds=(Fault.BREAK, Fault.LOST_CLOSE, Fault.HALF))
    with serving(history, faults) as service:
        outcome, changes = outcome_and_changes(
            service, from_start(history), time.time_ns() // 1_000
        )
    assert changes == len(history.changes)
    assert not outcome.is_stalled


def test_a_partition_that_stands_still_is_left_with_what_it_has() -> None:
    history = recent(4)
    middle_us = history.created_us + 2_000_000
    stall = Stall(b"", b"\xff" * 8, middle_us, middle_us + 3_600_000_000)
    with serving(replace(history, stalls=(stall,))) as service:
        outcome, changes = outcome_and_changes(
            service, from_start(history), time.time_ns() // 1_000
        )
    assert outcome.is_stalled
    assert 0 < changes < len(history.changes)
    [position] = outcome.positions
    assert position.token is not None
    assert position.stands_at_us == middle_us
    with serving(history) as service:
        read = Read(WHOLE_TABLE, (position,))
        after, rest = outcome_and_changes(service, read, time.time_ns() // 1_000)
    assert changes + rest == len(history.changes)
    assert [position.stands_at_us for position in after.positions] == [None]


def test_a_position_of_long_ago_gets_a_token_though_nothing_has_changed() -> None:
    start_us = time.time_ns() // 1_000 - 2 * 3_600_000_000
    quiet = generate(1, Shape(start_us=start_us, seconds=1, tablets=1, churn_per_s=0))
    with serving(quiet) as service:
        first = outcome_of(service, from_start(quiet), start_us + 1_500_000)
        [position] = first.positions
        [again] = outcome_of(
            service, Read(WHOLE_TABLE, (position,)), time.time_ns() // 1_000
        ).positions
    assert again.at_us > position.at_us
    assert again.token != position.token


def test_a_position_of_long_ago_is_read_to_the_end_though_heartbeats_come_before() -> None:
    now_us = time.time_ns() // 1_000
    start_us = now_us - 2 * 3_600_000_000
    shape = Shape(start_us=start_us, seconds=4, tablets=1, churn_per_s=0, changes_per_s=2_000)
    history = generate(1, shape)
    with serving(history) as service:
        _, changes = outcome_and_changes(service, from_start(history), now_us, pause_s=0.3)
    assert changes == len(history.changes)


def test_the_earliest_start_of_a_young_stream_is_its_creation() -> None:
    history = recent(10)
    with serving(history) as service:
        source = BigtableSource(service)
        earliest_ns = source.earliest_start_ns()
        assert 0 <= earliest_ns - us_to_ns(history.created_us) < us_to_ns(2_000_000)
        assert source.partitions_alive(earliest_ns) == [WHOLE_TABLE]
        with pytest.raises(StartTooOldError, match="can be read from"):
            source.partitions_alive(us_to_ns(history.created_us - 1_000_000))
        with pytest.raises(StartInFutureError):
            source.partitions_alive(earliest_ns + us_to_ns(3_600_000_000))


def test_what_bigtable_refuses_is_explained_and_not_tried_again() -> None:
    history = recent(2)
    now_us = time.time_ns() // 1_000
    old = starting_at([WHOLE_TABLE], history.created_us - 10)
    foreign = [Position(WHOLE_TABLE, WHOLE_TABLE, "foreign", now_us)]
    refusals: list[tuple[dict[str, str], list[Position], type[ReaderError], str]] = [
        ({"table": "other"}, starting_at([WHOLE_TABLE], now_us), NotFoundError, "Correct the name"),
        ({"app_profile": "multi"}, old, InvalidQueryError, "single-cluster routing"),
        ({}, old, StartTooOldError, "--skip-to earliest"),
        ({}, foreign, InvalidQueryError, "token"),
    ]
    with serving(history) as service:
        for names, positions, error, text in refusals:
            fields: dict[str, Any] = {**names}
            other = BigtableService(replace(service.table, **fields))
            with pytest.raises(error) as refused:
                outcome_of(other, reads_of(positions)[0], now_us)
            assert text in str(refused.value)
            other.close()
