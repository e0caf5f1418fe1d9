"""Chunks of a scan in an object store: each is published once, and whole."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from contextlib import suppress

import pytest
from obstore.store import MemoryStore

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.file_writer import WrittenFile
from tests.unit.test_epoch_objects import Owner, at, names, nothing, owner, visible


def chunk_files(process: Owner, chunk: int, *, is_staged: bool) -> list[WrittenFile]:
    """Return files of a chunk, in two folders, as a new attempt writes them."""
    files = []
    for part in range(2):
        content = f"{2 * chunk + part + 1}\n".encode()
        staged = f"{process.objects.staging(chunk)}/{uuid.uuid4()}" if is_staged else None
        if staged:
            process.store.put(staged, content)
        files.append(WrittenFile(f"t={part}", None if is_staged else content, staged))
    return files


def publish_chunk(process: Owner, chunk: int, *, is_staged: bool) -> None:
    """Publish a chunk of the epoch that has the numbers up to 9."""
    written = chunk_files(process, chunk, is_staged=is_staged)
    process.objects.publish(chunk, written, at(9), owner=process.objects.owner, chunk=chunk)


def require_whole(store: MemoryStore, logged: int, step: int, *, is_staged: bool) -> None:
    """Check what is visible once a successor has published chunk 9 after an epoch's numbers.

    Args:
        store: in which a former owner may have published it, or a part of it.
        logged: the number of the epoch whose line is the log's last.
        step: at which the former owner was stopped.
        is_staged: see chunk_files().
    """
    successor = Owner(store, "successor", nothing)
    successor.objects.take_over(lambda: at(logged))
    publish_chunk(successor, 9, is_staged=is_staged)
    # A chunk's files go on from the epoch's numbers.
    assert visible(store) == [*range(1, 10), 19, 20], step


@pytest.mark.parametrize("is_answer_lost", [False, True])
@pytest.mark.parametrize("is_staged", [False, True])
def test_a_chunk_whose_requests_fail_at_any_step_is_published_once_by_the_next_attempt(
    is_staged: bool, is_answer_lost: bool
) -> None:
    step = 0
    while True:
        step += 1
        store = MemoryStore()
        process = owner(store, "owner")
        publish_chunk(process, 0, is_staged=is_staged)
        process.before(nothing)
        process.stepping.fails_at, process.stepping.is_answer_lost = step, is_answer_lost
        # The scan tries a chunk again in the same process.
        for _ in range(2):
            with suppress(PublishError):
                publish_chunk(process, 1, is_staged=is_staged)
                break
        if process.stepping.requests < step:
            return
        publish_chunk(process, 2, is_staged=is_staged)
        assert visible(store) == [1, 2, 3, 4, 5, 6], step
        last = owner(store, "last")
        assert (last.last, visible(store)) == (0, [1, 2, 3, 4, 5, 6])


class DiedError(Exception):
    """The process is gone: it does nothing any more."""


def stop_at(step: int) -> Callable[[], None]:
    """Return a function that raises from its step-th call on."""
    calls = itertools.count(1)

    def before() -> None:
        if next(calls) >= step:
            raise DiedError

    return before


@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("logged", [9, 20])
def test_a_chunk_of_a_table_that_is_read_again_is_whole_after_a_death_at_any_step(
    logged: int, is_staged: bool
) -> None:
    step = 0
    while True:
        step += 1
        store = MemoryStore()
        process = owner(store, "owner")
        process.publish(9)
        process.before(stop_at(step))
        has_died = False
        try:
            publish_chunk(process, 9, is_staged=is_staged)
        except DiedError:
            has_died = True
        # The log has the epoch's line, which came before the chunk, or later ones.
        require_whole(store, logged, step, is_staged=is_staged)
        if not has_died:
            return


@pytest.mark.parametrize("is_answer_lost", [False, True])
@pytest.mark.parametrize("is_staged", [False, True])
def test_a_chunk_that_failed_is_whole_after_the_epochs_without_records_that_follow(
    is_staged: bool, is_answer_lost: bool
) -> None:
    step = 0
    while True:
        step += 1
        store = MemoryStore()
        process = owner(store, "owner")
        process.publish(9)
        process.before(nothing)
        process.stepping.fails_at, process.stepping.is_answer_lost = step, is_answer_lost
        with suppress(PublishError):
            publish_chunk(process, 9, is_staged=is_staged)
        if process.stepping.requests < step:
            return
        require_whole(store, 20, step, is_staged=is_staged)


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_chunk_that_a_user_has_removed_stays_removed(is_staged: bool) -> None:
    store = MemoryStore()
    process = owner(store, "former")
    publish_chunk(process, 0, is_staged=is_staged)
    assert visible(store) == [1, 2]
    for name in names(store):
        if name.startswith("epoch="):
            store.delete(name)
    owner(store, "successor")
    assert visible(store) == []
    assert not [name for name in names(store) if name.startswith("_staging")]
