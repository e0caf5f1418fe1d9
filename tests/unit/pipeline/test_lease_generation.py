"""A callback left from a former ownership of the same process makes nothing visible."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.pipeline import lease_holder
from slackwater.pipeline.epochs.writer import EpochWriter
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.scheduler.read_options import AuditMode
from slackwater.state.errors import LeaseLostError, StoreUnreachableError
from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store
from slackwater.worker_errors import WorkerError


def test_a_writer_of_a_former_lease_is_refused(orders_store: Store) -> None:
    begin_plan(orders_store, Plan("plan", "orders", 500, 1_500), tasks=0)
    lease = LeaseHolder(orders_store, "orders", duration_s=60)
    published: list[int] = []
    sink: Any = SimpleNamespace(
        stage=lambda *_: None, publish=lambda _, epoch, *__: published.append(epoch)
    )
    nothing: Any = None

    def writer() -> EpochWriter:
        return EpochWriter(nothing, "orders", sink, orders_store, lease, AuditMode.STOP)

    with pytest.raises(LeaseLostError):
        writer()
    lease.acquire(wait=False, until=lambda: False)
    former = writer()
    lease.release()
    with pytest.raises(WorkerError, match="LeaseLostError"):
        former.write(nothing, 7)
    lease.acquire(wait=False, until=lambda: False)
    with pytest.raises(WorkerError, match="LeaseLostError"):
        former.write(nothing, 7)
    assert published == []
    # The lease of today is not lost by that.
    assert lease.is_held
    lease.check()
    lease.release()


def test_a_lease_tells_of_a_store_that_takes_no_writes(
    orders_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnreachableError("database or disk is full.")

    lease = LeaseHolder(orders_store, "orders", duration_s=0.1)
    assert lease.unrenewed_s is None
    with monkeypatch.context() as patch:
        patch.setattr(lease_holder, "renew_lease", refuse)
        lease.acquire(wait=False, until=lambda: False)
        limit_s = time.monotonic() + 60
        while lease.unrenewed_s is None:
            assert time.monotonic() < limit_s
            time.sleep(0.01)
    while lease.unrenewed_s is not None:
        assert time.monotonic() < limit_s
        time.sleep(0.01)
    lease.release()
    assert lease.unrenewed_s is None
