"""Epochs in an object store: of two processes at any two steps, one publishes."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.formats import TEXT
from slackwater.spark_sink.output import commit_log
from slackwater.spark_sink.output.commit_log import KEPT
from slackwater.spark_sink.output.epoch_objects import EpochObjects
from slackwater.spark_sink.output.file_writer import WrittenFile

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
REQUESTS = ("put", "get", "head", "list", "list_with_delimiter", "delete", "copy")


class Stepping:
    """A store that calls a function before each request."""

    def __init__(self, store: MemoryStore, before: Callable[[], None]) -> None:
        self._store = store
        self._before = before
        self.requests = 0
        # The number of a request that fails, maybe after the store has carried it out.
        self.fails_at = 0
        self.is_answer_lost = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in REQUESTS:
            return attribute

        def request(*args: Any, **kwargs: Any) -> Any:
            self.requests += 1
            self._before()
            if self.requests != self.fails_at:
                return attribute(*args, **kwargs)
            if self.is_answer_lost:
                attribute(*args, **kwargs)
            raise GenericError("the connection was reset")

        return request


def at(number: int) -> datetime:
    return START + timedelta(seconds=number)


class Owner:
    """A process that publishes numbers: an epoch has those after the last one through its own."""

    def __init__(self, store: MemoryStore, name: str, before: Callable[[], None]) -> None:
        self.store = store
        self.stepping = Stepping(store, before)
        self.objects = EpochObjects(self.stepping, "memory", TEXT, "txt")  # type: ignore[arg-type]
        self.last = 0
        self.epochs = 0

    def before(self, before: Callable[[], None]) -> None:
        """Call a function before each request from now on."""
        self.stepping = Stepping(self.store, before)
        self.objects._store = self.objects._log._store = self.stepping  # type: ignore[assignment]

    def take_over(self) -> None:
        low_watermark = self.objects.take_over(lambda: None).low_watermark
        self.last = 0 if low_watermark is None else round((low_watermark - START).total_seconds())

    def publish(self, through: int, *, is_staged: bool = False) -> bool:
        numbers = range(self.last + 1, through + 1)
        self.epochs += 1
        written = []
        # Two tasks, each with a file.
        for task in range(2):
            content = "".join(f"{number}\n" for number in numbers if number % 2 == task).encode()
            staged = f"{self.objects.staging(self.epochs)}/{uuid.uuid4()}" if is_staged else None
            if staged:
                self.store.put(staged, content)
            written.append(WrittenFile("", None if is_staged else content, staged))
        done = self.objects.publish(self.epochs, written, at(through), owner=self.objects.owner)
        self.last = through
        return done


def nothing() -> None:
    """Do nothing before a request."""


def names(store: MemoryStore) -> list[str]:
    return sorted(item["path"] for page in store.list() for item in page)


def visible(store: MemoryStore) -> list[int]:
    """What a reader sees who knows of no commits."""
    contents = [bytes(store.get(name).bytes()) for name in names(store) if name[0] != "_"]
    return sorted(int(number) for content in contents for number in content.split())


def owner(store: MemoryStore, name: str) -> Owner:
    made = Owner(store, name, nothing)
    made.take_over()
    return made


def freeze_at(step: int, then: Callable[[], None]) -> Callable[[], None]:
    """Return a function that, at its step-th call, has something else happen first."""
    calls = 0

    def before() -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            then()

    return before


# So many epochs that the commits of the former owner are removed, all or some of them.
SUCCESSORS_EPOCHS = (0, 1, KEPT - 1, KEPT, KEPT + 1, KEPT + 2, 2 * KEPT)


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("epochs", SUCCESSORS_EPOCHS)
def test_a_former_owner_that_wakes_at_any_step_publishes_nothing_twice(
    epochs: int, is_staged: bool, takes_over: bool
) -> None:
    step = 0
    while True:
        step += 1
        store = MemoryStore()
        successor = Owner(store, "successor", nothing)

        def succeed(successor: Owner = successor) -> None:
            successor.take_over()
            for _ in range(epochs):
                # Its epochs do not end where the former owner's would have ended.
                successor.publish(successor.last + 2, is_staged=is_staged)

        former = owner(store, "former")
        former.publish(2, is_staged=is_staged)
        former.before(freeze_at(step, succeed))
        with suppress(PublishError):
            if takes_over:
                former.take_over()
            former.publish(former.last + 1, is_staged=is_staged)
        if former.stepping.requests < step:
            return
        published = max(successor.last, former.last) if takes_over else successor.last
        assert visible(store) == list(range(1, published + 1))
        last = owner(store, "last")
        assert last.last == published
        last.publish(last.last + 1)
        assert visible(store) == list(range(1, last.last + 1))


def test_a_former_owner_that_wakes_while_old_commits_are_removed_publishes_nothing() -> None:
    step = 0
    while True:
        step += 1
        store = MemoryStore()
        former = owner(store, "former")
        former.publish(1)
        # Each adds a commit, and removes none.
        for number in range(KEPT + 3):
            owner(store, f"successor {number}")
        last = owner(store, "last")

        def wake(former: Owner = former) -> None:
            with pytest.raises(PublishError, match="taken the pipeline over"):
                former.publish(3)

        last.before(freeze_at(step, wake))
        last.publish(2)
        if last.stepping.requests < step:
            return
        assert visible(store) == [1, 2]


def test_what_was_staged_before_a_take_over_is_not_committed_after_it() -> None:
    """A process that loses its lease and gets it back, while a thread of the first time goes on."""
    store = MemoryStore()
    process = owner(store, "process")
    former = process.objects.owner
    written = [WrittenFile("", None, f"{process.objects.staging(1)}/file")]
    store.put(written[0].staged or "", b"1\n")
    process.take_over()
    with pytest.raises(PublishError, match="since this epoch was staged"):
        process.objects.publish(1, written, at(1), owner=former)
    process.take_over()
    assert process.publish(1, is_staged=True)
    assert visible(store) == [1]


@pytest.mark.parametrize("step", range(1, 4))
def test_a_former_owner_whose_staged_files_are_gone_says_so(step: int) -> None:
    """Its compaction's commit got no answer, and its successor removed what it names."""
    store = MemoryStore()
    former = owner(store, "former")
    former.publish(1)
    staged = f"{former.objects.staging(0)}/large"
    store.put(staged, b"1\n")

    def fail() -> None:
        raise PublishError("no answer")

    former.before(freeze_at(step, fail))
    with suppress(PublishError):
        former.objects.replace("epoch=20260131T090001.000000Z.compacted/part-00000.txt", staged)
    former.before(nothing)
    owner(store, "successor")
    with pytest.raises(PublishError, match=r"(taken|took) the pipeline over"):
        former.publish(2)


@pytest.mark.parametrize("is_staged", [False, True])
def test_an_epoch_that_a_user_has_removed_stays_removed(is_staged: bool) -> None:
    store = MemoryStore()
    owner(store, "former").publish(2, is_staged=is_staged)
    for name in names(store):
        if name.startswith("epoch="):
            store.delete(name)
    successor = Owner(store, "successor", nothing)
    assert successor.objects.take_over(lambda: at(2)).low_watermark == at(2)
    assert visible(store) == []


def test_epochs_after_the_last_commit_are_refused() -> None:
    store = MemoryStore()
    process = owner(store, "former")
    for through in (1, 2):
        process.publish(through)
    # A copy of the bucket that lacks the last commit.
    store.delete([name for name in names(store) if name.startswith("_commits")][-1])
    store.put("epoch=20260131T090009.000000Z/part-00000.txt", b"9")
    with pytest.raises(ObjectStoreError, match="remove the epochs after"):
        owner(store, "successor")
    empty = MemoryStore()
    empty.put("epoch=20260131T090009.000000Z/part-00000.txt", b"9")
    with pytest.raises(ObjectStoreError, match="later than the last epoch"):
        owner(empty, "new")


class Turns:
    """Lets one of several threads make its next request, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self._condition = threading.Condition()
        self._waiting: set[int] = set()
        self._running = 0
        self._chosen: int | None = None

    def begin(self) -> None:
        with self._condition:
            self._running += 1

    def wait(self) -> None:
        me = threading.get_ident()
        with self._condition:
            self._waiting.add(me)
            self._choose()
            while self._chosen != me:
                assert self._condition.wait(60)
            self._waiting.discard(me)
            self._chosen = None

    def end(self) -> None:
        with self._condition:
            self._running -= 1
            self._choose()

    def _choose(self) -> None:
        if self._chosen is None and self._waiting and len(self._waiting) == self._running:
            self._chosen = self.choose.choice(sorted(self._waiting))
            self._condition.notify_all()


def live(seed: int) -> tuple[MemoryStore, int]:
    """Let three processes take over and publish at once; return how often one was refused."""
    store, turns, refused = MemoryStore(), Turns(seed), []

    def take_over_and_publish(number: int, choose: random.Random) -> None:
        process = Owner(store, f"process {number}", turns.wait)
        for _ in range(choose.randint(1, 4)):
            try:
                process.take_over()
                for _ in range(choose.randint(0, 8)):
                    through = process.last + choose.randint(1, 3)
                    process.publish(through, is_staged=choose.random() < 0.3)
            except PublishError as error:
                refused.append(error)

    def run(number: int) -> None:
        try:
            take_over_and_publish(number, random.Random(f"{seed} {number}"))
        finally:
            turns.end()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for _ in threads:
        turns.begin()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return store, len(refused)


@pytest.mark.parametrize("part", range(4))
def test_processes_that_all_think_they_own_the_output_publish_each_number_once(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a process often wakes when its number is free again.
    monkeypatch.setattr(commit_log, "KEPT", 2)
    refused = 0
    for seed in range(part, 200, 4):
        store, times = live(seed)
        refused += times
        last = owner(store, "last")
        assert visible(store) == list(range(1, last.last + 1)), f"seed {seed}"
        assert not [name for name in names(store) if name.startswith("_staging")]
    assert refused, "no process ever lost the output to another"
