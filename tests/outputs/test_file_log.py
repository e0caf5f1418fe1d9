"""Epochs in files: of two processes at any two steps, one publishes."""

import itertools
import random
import threading
from contextlib import suppress

import pytest

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output import commit_log
from slackwater.spark_sink.output.commit_log import COMMITS_KEPT, CommittedFile
from tests.support.file_places import (
    PLACES,
    FilePlace,
    Hold,
    InMemory,
    InMemoryStaged,
    OnDisk,
    Process,
    at,
    at_two_switches,
    freeze_at,
    nothing,
    owner,
)

# Fewer no epoch takes on a disk.
STEPS_MIN = 10
in_each_place = pytest.mark.parametrize("kind", PLACES.values(), ids=list(PLACES))

# So many epochs that the commits of the former owner are removed, all or some of them.
SUCCESSORS_EPOCHS = (
    0,
    1,
    COMMITS_KEPT - 1,
    COMMITS_KEPT,
    COMMITS_KEPT + 1,
    COMMITS_KEPT + 2,
    2 * COMMITS_KEPT,
)


@pytest.mark.parametrize("takes_over", [False, True])
@in_each_place
@pytest.mark.parametrize("epochs", SUCCESSORS_EPOCHS)
def test_a_former_owner_that_wakes_at_any_step_publishes_nothing_twice(
    epochs: int, kind: type[FilePlace], takes_over: bool
) -> None:
    for step in itertools.count(1):
        place = kind()
        successor = Process(place)

        def succeed(successor: Process = successor) -> None:
            successor.take_over()
            for _ in range(epochs):
                # Its epochs do not end where the former owner's would have ended.
                successor.publish(successor.last + 2)

        former = owner(place)
        former.publish(2)
        former.before(freeze_at(step, succeed))
        with suppress(PublishError):
            if takes_over:
                former.take_over()
            former.publish(former.last + 1)
        if former.steps.count < step:
            break
        published = max(successor.last, former.last) if takes_over else successor.last
        assert place.visible() == list(range(1, published + 1))
        last = owner(place)
        assert last.last == published
        last.publish(last.last + 1)
        assert place.visible() == list(range(1, last.last + 1))
    assert step > 3


@in_each_place
def test_an_owner_and_its_successor_at_any_two_steps_publish_each_number_once(
    kind: type[FilePlace],
) -> None:
    """The one stands before a step while the other goes on as far as a step, and so on."""
    for step in itertools.count(1):
        for other_step in itertools.count(1):
            place = kind()
            former, successor = owner(place), Process(place)
            former.publish(1)

            def go_on(former: Process = former) -> None:
                former.publish(3)

            def succeed(successor: Process = successor) -> None:
                successor.take_over()
                successor.publish(successor.last + 1)

            here, there = Hold(step), Hold(other_step)
            at_two_switches(former, go_on, here, successor, succeed, there)
            last = owner(place)
            assert place.visible() == list(range(1, last.last + 1)), (step, other_step)
            assert last.last in (2, 4)
            if there.count < other_step:
                break
        assert other_step > 3
        if here.count < step:
            break
    assert step > 3


@in_each_place
def test_a_replay_changes_nothing(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place)
    assert process.publish(2)
    shown = {name: place.read(name) for name in place.names() if name[0] != "_"}
    process.last = 0
    assert not process.publish(2)
    assert {name: place.read(name) for name in place.names() if name[0] != "_"} == shown
    assert not [name for name in place.names() if name.startswith("_staging")]


@in_each_place
def test_a_former_owner_that_wakes_while_old_commits_are_removed_publishes_nothing(
    kind: type[FilePlace],
) -> None:
    for step in itertools.count(1):
        place = kind()
        former = owner(place)
        former.publish(1)
        # Each adds a commit, and removes none.
        for _ in range(COMMITS_KEPT + 3):
            owner(place)
        last = owner(place)

        def wake(former: Process = former) -> None:
            with pytest.raises(PublishError, match="taken the pipeline over"):
                former.publish(3)

        last.before(freeze_at(step, wake))
        last.publish(2)
        if last.steps.count < step:
            break
        assert place.visible() == [1, 2]
    assert step > 3


@pytest.mark.parametrize("kind", [InMemoryStaged, OnDisk])
def test_what_was_staged_before_a_take_over_is_not_committed_after_it(
    kind: type[FilePlace],
) -> None:
    """A process that loses its lease and gets it back, while a thread of the first time goes on."""
    place = kind()
    process = owner(place)
    former, written = process.log.owner, [process.written(b"1\n")]
    process.take_over()
    with pytest.raises(PublishError, match="since this was staged"):
        process.log.publish(written, at(1), owner=former)
    with pytest.raises(PublishError, match="since this was staged"):
        process.log.replace(CommittedFile("epoch=20260131T090001.000000Z.compacted"), former)
    process.take_over()
    assert process.publish(1)
    assert place.visible() == [1]


@pytest.mark.parametrize("step", range(1, 4))
def test_a_former_owner_whose_staged_files_are_gone_says_so(step: int) -> None:
    """Its compaction's commit got no answer, and its successor removed what it names."""
    place = InMemoryStaged()
    former = owner(place)
    former.publish(1)
    staged = former.written(b"1\n").staged

    def fail() -> None:
        raise PublishError("no answer")

    former.before(freeze_at(step, fail))
    name = "epoch=20260131T090001.000000Z.compacted/part-00000.txt"
    with suppress(PublishError):
        former.log.replace(CommittedFile(name, staged), former.log.owner)
    former.before(nothing)
    owner(place)
    with pytest.raises(PublishError, match=r"(taken|took) the pipeline over"):
        former.publish(2)


@in_each_place
def test_an_epoch_that_a_user_has_removed_stays_removed(kind: type[FilePlace]) -> None:
    place = kind()
    owner(place).publish(2)
    place.delete_epochs()
    assert Process(place).take_over(lambda: at(2)) == at(2)
    assert place.visible() == []


@pytest.mark.parametrize("kind", [InMemory, OnDisk])
def test_epochs_after_the_last_commit_are_refused(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place)
    for through in (1, 2):
        process.publish(through)
    # A copy of the output that lacks the last commit.
    place.delete([name for name in place.names() if name.startswith("_commits")][-1])
    place.put("epoch=20260131T090009.000000Z/part-00000.txt", b"9")
    with pytest.raises(ObjectStoreError, match="remove the epochs after"):
        owner(place)
    # Nor if the first of them is a chunk of a scan, which has a number.
    place.put("epoch=20260131T090004.000000Z.000000/part-00000.txt", b"5")
    with pytest.raises(ObjectStoreError, match="remove the epochs after"):
        owner(place)
    empty = kind()
    empty.put("epoch=20260131T090009.000000Z/part-00000.txt", b"9")
    with pytest.raises(ObjectStoreError, match="later than the last epoch"):
        owner(empty)


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize("step", range(1, 40))
def test_an_epoch_at_whose_publication_a_disk_fails_is_published_once_by_the_next(
    step: int, takes_over: bool
) -> None:
    place = OnDisk()
    process = owner(place)
    process.publish(1)
    process.before(nothing)
    process.steps.fails_at = step
    with suppress(PublishError):
        process.publish(2)
    # The last of them is one too many.
    assert process.steps.count >= step or step > STEPS_MIN
    process.steps.fails_at = 0
    # It is tried again by a process that takes over, or by the same one.
    if takes_over:
        process.take_over()
    else:
        process.publish(2)
    process.publish(3)
    assert place.visible() == [1, 2, 3]


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


def live(kind: type[FilePlace], seed: int) -> tuple[FilePlace, int]:
    """Let three processes take over and publish at once; return how often one was refused."""
    place, turns, refused = kind(), Turns(seed), []

    def take_over_and_publish(number: int, choose: random.Random) -> None:
        process = Process(place, turns.wait)
        for _ in range(choose.randint(1, 4)):
            try:
                process.take_over()
                for _ in range(choose.randint(0, 8)):
                    process.publish(process.last + choose.randint(1, 3))
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
    return place, len(refused)


@pytest.mark.parametrize("part", range(2))
@in_each_place
def test_processes_that_all_think_they_own_the_output_publish_each_number_once(
    kind: type[FilePlace], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a process often wakes when its number is free again.
    monkeypatch.setattr(commit_log, "COMMITS_KEPT", 2)
    refused = 0
    for seed in range(part, 200, 2):
        place, times = live(kind, seed)
        refused += times
        last = owner(place)
        assert place.visible() == list(range(1, last.last + 1)), f"seed {seed}"
        assert not [name for name in place.names() if name.startswith("_staging")]
    assert refused, "no process ever lost the output to another"
