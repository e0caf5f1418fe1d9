"""Committed epochs are recorded once each, from Spark's progress, in a store on a file."""

import json
import threading
from dataclasses import replace

import pytest

from slackwater.pipeline.epochs.audit import AuditedEpoch
from slackwater.pipeline.epochs.recorder import EpochRecorder, RecordPolicy
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.epochs.writer import WrittenEpoch
from slackwater.spark_sink.sink import EpochSummary
from slackwater.state.epochs import last_epochs
from slackwater.state.errors import StoreUnreachableError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan
from slackwater.state.rescan_models import REQUESTED, Rescan, RescanState
from slackwater.state.rescans import record_rescan, request_rescans
from slackwater.state.store import Store
from slackwater.state.task_metrics import TaskMetrics
from slackwater.timestamp import format_rfc3339

SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS


def after(seconds: float) -> int:
    return START_NS + round(seconds * SECOND_NS)


def progress(epoch: int, start_s: float | None, end_s: float) -> str:
    """A progress of Spark's, as its JSON."""
    start = None if start_s is None else {"low_watermark": format_rfc3339(after(start_s))}
    return json.dumps(
        {
            "batchId": epoch,
            "timestamp": format_rfc3339(after(end_s)),
            "durationMs": {"triggerExecution": 500},
            "sources": [
                {
                    "startOffset": start,
                    "endOffset": {"low_watermark": format_rfc3339(after(end_s))},
                }
            ],
        }
    )


class Progresses:
    """A query's progress, as far as it has come."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def last_progress(self) -> str | None:
        return self.texts[-1] if self.texts else None

    def recent_progress(self) -> list[str]:
        return self.texts


class Scene:
    """A recorder over a store of one owned pipeline."""

    def __init__(
        self, store: Store, until_ns: int | None = None, end_ns: int | None = None
    ) -> None:
        self.store = store
        self.lost = threading.Event()
        self.generation = read_lease(store, "orders").generation
        self.reports: list[EpochReport] = []
        policy = RecordPolicy(until_ns, end_ns, 10**18)
        self.recorder = EpochRecorder(
            "orders", store, self, self.clock_ns, self.written, self.reports.append, policy
        )

    def clock_ns(self) -> int:
        return after(100)

    def written(self, epoch: int) -> WrittenEpoch | None:
        summary = EpochSummary(7, 7, 3, None, None)
        return WrittenEpoch(summary, AuditedEpoch(0, TaskMetrics()), 10, 20, after(epoch))

    @property
    def epochs(self) -> list[int]:
        return [report.epoch for report in self.reports]


@pytest.fixture
def store(orders_store: Store) -> Store:
    lease = read_lease(orders_store, "orders")
    assert acquire_lease(orders_store, "orders", "me", lease) is not None
    return orders_store


def plan(store: Store, start_s: float, end_s: float) -> None:
    """Plan an epoch without partitions."""
    begin_plan(store, Plan(f"until {end_s}", "orders", after(start_s), after(end_s)), tasks=0)


def test_an_epoch_is_recorded_once_however_often_it_is_seen(store: Store) -> None:
    scene = Scene(store)
    plan(store, 0, 1)
    plan(store, 1, 2)
    query = Progresses(progress(0, None, 1), progress(1, 1, 2))
    for _ in range(3):
        scene.recorder.record_committed(query)
    assert scene.recorder.epochs == 2
    assert scene.epochs == [1]
    (epoch,) = last_epochs(store, "orders", limit=10)
    assert (epoch.start_ns, epoch.end_ns, epoch.records) == (after(1), after(2), 7)
    pipeline = store.pipeline("orders")
    assert pipeline is not None
    assert pipeline.low_watermark_ns == after(2)
    assert scene.reports[0].lag_ns == 98 * SECOND_NS


def test_epochs_between_two_looks_are_recorded_too(store: Store) -> None:
    scene = Scene(store)
    query = Progresses(progress(0, None, 1))
    scene.recorder.record_committed(query)
    query.texts += [progress(1, 1, 2), progress(2, 2, 3), progress(3, 3, 4)]
    scene.recorder.record_committed(query)
    assert scene.epochs == [1, 2, 3]


def test_a_progress_without_anything_new_is_no_epoch(store: Store) -> None:
    scene = Scene(store)
    scene.recorder.record_committed(Progresses())
    scene.recorder.record_committed(Progresses(progress(5, 1, 1)))
    assert scene.recorder.epochs == 0


def test_a_commit_by_a_former_owner_shows_the_lost_lease_and_records_nothing(store: Store) -> None:
    scene = Scene(store)
    acquire_lease(store, "orders", "another", read_lease(store, "orders"))
    scene.recorder.record_committed(Progresses(progress(0, None, 1), progress(1, 1, 2)))
    assert scene.lost.is_set()
    assert scene.recorder.epochs == 0
    assert scene.reports == []
    pipeline = store.pipeline("orders")
    assert pipeline is not None
    assert pipeline.low_watermark_ns is None


def test_a_run_that_has_caught_up_ends_when_all_is_read_again(store: Store) -> None:
    rescan = Rescan("orders", "Orders", 1, REQUESTED)
    request_rescans(store, [rescan])
    scene = Scene(store, until_ns=after(2))
    scene.recorder.record_committed(Progresses(progress(0, None, 2)))
    assert not scene.recorder.has_reached_end
    done = replace(rescan, state=RescanState.DONE)
    assert record_rescan(store, done, generation=scene.generation)
    scene.recorder.record_committed(Progresses(progress(1, 2, 3)))
    assert scene.recorder.has_reached_end


def test_a_pipeline_ends_for_good_whatever_is_being_read_again(store: Store) -> None:
    request_rescans(store, [Rescan("orders", "Orders", 1, REQUESTED)])
    scene = Scene(store, until_ns=after(2), end_ns=after(2))
    scene.recorder.record_committed(Progresses(progress(0, None, 2)))
    assert scene.recorder.has_reached_end


def test_a_store_out_of_reach_keeps_neither_the_query_nor_the_program_from_going_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(store, until_ns=after(2))

    def fail(*_: object) -> None:
        raise StoreUnreachableError("the store does not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "write", fail)
        scene.recorder.record_committed(Progresses(progress(0, None, 2)))
    assert scene.recorder.epochs == 0
    assert scene.recorder.has_reached_end
    # The next epoch's commit says all that this one would have.
    plan(store, 2, 3)
    scene.recorder.record_committed(Progresses(progress(1, 2, 3)))
    pipeline = store.pipeline("orders")
    assert pipeline is not None
    assert pipeline.low_watermark_ns == after(3)
