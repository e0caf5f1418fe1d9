"""The lease: one owner at a time, on every store; who is gone is known without comparing clocks."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from slackwater.errors import PipelineOwnedError
from slackwater.pipeline import lease_holder
from slackwater.pipeline.lease_holder import LeaseHolder, owner_is_dead, owner_name
from slackwater.state import engine
from slackwater.state.errors import LeaseLostError
from slackwater.state.lease import (
    LeaseObservation,
    acquire_lease,
    is_expired,
    observe,
    read_lease,
    release_lease,
    renew_lease,
)
from slackwater.state.models import Lease
from slackwater.state.store import Store
from slackwater.state.tables import pipelines

SHORT_S = 0.6
T = TypeVar("T")


class Impatient(Store):
    """Gives a store up that does not answer for half a second."""

    def _retried(self, attempt: Callable[[], T], patience_s: float) -> T:
        return super()._retried(attempt, min(patience_s, 0.5))


def never() -> bool:
    return False


def test_of_many_that_want_the_lease_at_once_one_gets_it(store: Store) -> None:
    seen = read_lease(store, "orders")
    with ThreadPoolExecutor(4) as pool:
        took = list(pool.map(lambda name: acquire_lease(store, "orders", name, seen), "abcd"))
    (taken,) = [lease for lease in took if lease is not None]
    assert read_lease(store, "orders") == taken


def test_a_store_that_went_back_gives_no_generation_twice(store: Store) -> None:
    """A former owner that still runs has the generation that the restored store has lost."""
    before = read_lease(store, "orders")
    former = acquire_lease(store, "orders", "former", before)
    assert former is not None
    with store._engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE pipelines SET owner = NULL, generation = 0, heartbeat = 0")
        )
    assert read_lease(store, "orders") == before
    taken = acquire_lease(store, "orders", "new", before)
    assert taken is not None
    with pytest.raises(LeaseLostError, match="new took over"):
        store.replace_partitions("orders", [], generation=former.generation)


def test_a_renewal_shows_and_a_former_owner_can_not_renew(store: Store) -> None:
    first = acquire_lease(store, "orders", "first", read_lease(store, "orders"))
    assert first is not None
    renewed = renew_lease(store, "orders", first)
    assert renewed is not None
    assert renewed.heartbeat == first.heartbeat + 1
    second = acquire_lease(store, "orders", "second", renewed)
    assert second is not None
    assert renew_lease(store, "orders", first) is None
    release_lease(store, "orders", first)
    assert read_lease(store, "orders") == second
    release_lease(store, "orders", second)
    assert read_lease(store, "orders").owner is None


def test_a_lease_is_free_once_its_beat_has_stood_still_for_its_duration() -> None:
    lease = Lease("owner", 1, 7)
    sighting = observe(None, lease, 100.0)
    assert not is_expired(sighting, 109.9, duration_s=10)
    assert observe(sighting, lease, 105.0) == LeaseObservation(lease, 100.0)
    assert is_expired(sighting, 110.0, duration_s=10)
    renewed = observe(sighting, Lease("owner", 1, 8), 109.0)
    assert not is_expired(renewed, 110.0, duration_s=10)
    assert is_expired(observe(None, Lease(None, 1, 8), 0.0), 0.0, duration_s=10)


def test_a_standby_takes_over_from_one_that_no_longer_renews(store: Store) -> None:
    # Another machine's owner, whose process can't be looked up here.
    dead = acquire_lease(store, "orders", "elsewhere pid 1 (x y)", read_lease(store, "orders"))
    assert dead is not None
    standby = LeaseHolder(store, "orders", duration_s=SHORT_S)
    began = time.monotonic()
    assert standby.acquire(wait=True, until=never)
    assert SHORT_S <= time.monotonic() - began < 10 * SHORT_S
    assert standby.generation > dead.generation
    standby.release()
    assert read_lease(store, "orders").owner is None


def test_whoever_renews_keeps_it_and_whoever_shall_not_wait_is_told(store: Store) -> None:
    owner = LeaseHolder(store, "orders", duration_s=SHORT_S)
    assert owner.acquire(wait=True, until=never)
    other = LeaseHolder(store, "orders", duration_s=SHORT_S)
    with pytest.raises(PipelineOwnedError, match=f"pid {os.getpid()}"):
        other.acquire(wait=False, until=never)
    stop = threading.Event()
    threading.Timer(3 * SHORT_S, stop.set).start()
    assert not other.acquire(wait=True, until=stop.is_set)
    owner.check()
    owner.release()


def test_an_owner_that_was_replaced_learns_of_it(store: Store) -> None:
    owner = LeaseHolder(store, "orders", duration_s=SHORT_S)
    assert owner.acquire(wait=True, until=never)
    while acquire_lease(store, "orders", "other", read_lease(store, "orders")) is None:
        pass
    assert owner.lost.wait(240)
    with pytest.raises(LeaseLostError, match="other"):
        owner.check()
    owner.release()
    assert read_lease(store, "orders").owner == "other"


def test_whoever_stands_by_outlasts_a_store_that_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    impatient = Impatient.open(f"sqlite:///{path}?timeout=0.1", migrate=True)
    impatient.ensure_pipeline("orders", "stream")
    dead = acquire_lease(
        impatient, "orders", "elsewhere pid 1 (x y)", read_lease(impatient, "orders")
    )
    assert dead is not None
    standby = LeaseHolder(impatient, "orders", duration_s=SHORT_S)
    with sqlite3.connect(path) as frozen, ThreadPoolExecutor(1) as pool:
        until = time.monotonic() + 240
        frozen.execute("BEGIN IMMEDIATE")
        with capture_logs() as logs:
            acquired = pool.submit(
                standby.acquire, wait=True, until=lambda: time.monotonic() > until
            )
            while not any("database is locked" in line.get("error", "") for line in logs):
                assert not acquired.done()
                time.sleep(0.05)
        frozen.rollback()
        assert acquired.result(240)
    standby.release()
    impatient.close()


def test_a_slow_look_tells_nothing_of_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that it has renewed the lease, nor that it has not for so long."""
    duration_s = 0.3
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    store.ensure_pipeline("orders", "stream")
    assert acquire_lease(store, "orders", "elsewhere pid 1 (x y)", read_lease(store, "orders"))

    def slow_look(store: Store, pipeline: str) -> Lease:
        time.sleep(2 * duration_s)
        return read_lease(store, pipeline)

    former, owner = (LeaseHolder(store, "orders", duration_s=duration_s) for _ in range(2))
    former.observe()
    with monkeypatch.context() as slow:
        slow.setattr(lease_holder, "read_lease", slow_look)
        sighting = former.observe()
        assert not is_expired(sighting, time.monotonic(), duration_s=duration_s)
        owner.observe()
        assert owner.acquire(wait=False, until=never)
    owner.release()
    store.close()


def test_a_process_that_is_frozen_in_a_transaction_does_not_keep_the_lease(
    new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_IDLE_SECONDS", 1)
    url = new_postgres_url()
    frozen, store = Store.open(url, migrate=True), Store.open(url, migrate=False)
    frozen.ensure_pipeline("orders", "stream")
    held, awake = threading.Event(), threading.Event()

    def freeze(connection: sa.Connection) -> None:
        connection.execute(sa.update(pipelines).values(heartbeat=pipelines.c.heartbeat))
        held.set()
        assert awake.wait(240)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(frozen.write, freeze)
        assert held.wait(240)
        assert acquire_lease(store, "orders", "standby", read_lease(store, "orders"))
        awake.set()
        done.result(240)
    frozen.close()
    store.close()


def test_a_process_of_this_machine_is_known_to_be_gone() -> None:
    code = "from slackwater.pipeline.lease_holder import owner_name; print(owner_name())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert owner_is_dead(done.stdout.strip())
    parent = owner_name().replace(f"pid {os.getpid()} ", f"pid {os.getppid()} ")
    assert not owner_is_dead(parent), "a process that runs"
    assert not owner_is_dead("another host pid 1 (boot/123 abcdef)")
    assert not owner_is_dead("nonsense")
