"""Chunks of a scan in files: each is published once, and whole."""

import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.file_log import CHUNKS
from tests.support.file_places import PLACES, FilePlace, Process, at, nothing, owner

in_each_place = pytest.mark.parametrize("kind", PLACES.values(), ids=list(PLACES))


def publish_chunk(process: Process, chunk: int) -> None:
    """Publish a chunk of two numbers, in two folders, as a new attempt writes them."""
    written = [
        process.written(f"{2 * chunk + part + 1}\n".encode(), CHUNKS, f"t={part}")
        for part in range(2)
    ]
    process.publish_chunk(chunk, written)


def require_whole(place: FilePlace, logged: int, step: int) -> None:
    """Check what is visible once a successor has published chunk 9 after an epoch's numbers.

    Args:
        place: in which a former owner may have published it, or a part of it.
        logged: the number of the epoch whose line is the log's last.
        step: at which the former owner was stopped.
    """
    successor = Process(place)
    successor.take_over(lambda: at(logged))
    publish_chunk(successor, 9)
    # A chunk's files go on from the epoch's numbers.
    assert place.visible() == [*range(1, 10), 19, 20], step


@pytest.mark.parametrize("is_answer_lost", [False, True])
@in_each_place
def test_a_chunk_whose_steps_fail_anywhere_is_published_once_by_the_next_attempt(
    kind: type[FilePlace], is_answer_lost: bool
) -> None:
    for step in itertools.count(1):
        place = kind()
        process = owner(place)
        publish_chunk(process, 0)
        process.before(nothing)
        process.steps.fails_at, process.steps.is_answer_lost = step, is_answer_lost
        # The scan tries a chunk again in the same process.
        for _ in range(2):
            with suppress(PublishError):
                publish_chunk(process, 1)
                break
        if process.steps.count < step:
            break
        process.steps.fails_at = 0
        publish_chunk(process, 2)
        assert place.visible() == [1, 2, 3, 4, 5, 6], step
        last = owner(place)
        assert (last.last, place.visible()) == (0, [1, 2, 3, 4, 5, 6])
    assert step > 3


class DiedError(Exception):
    """The process is gone: it does nothing any more."""


def stop_at(step: int) -> Callable[[], None]:
    """Return a function that raises from its step-th call on."""
    calls = itertools.count(1)

    def before() -> None:
        if next(calls) >= step:
            raise DiedError

    return before


@in_each_place
@pytest.mark.parametrize("logged", [9, 20])
def test_a_chunk_of_a_table_that_is_read_again_is_whole_after_a_death_at_any_step(
    logged: int, kind: type[FilePlace]
) -> None:
    for step in itertools.count(1):
        place = kind()
        process = owner(place)
        process.publish(9)
        process.before(stop_at(step))
        has_died = False
        try:
            publish_chunk(process, 9)
        except DiedError:
            has_died = True
        # The log has the epoch's line, which came before the chunk, or later ones.
        require_whole(place, logged, step)
        if not has_died:
            break
    assert step > 3


@pytest.mark.parametrize("is_answer_lost", [False, True])
@in_each_place
def test_a_chunk_that_failed_is_whole_after_the_epochs_without_records_that_follow(
    kind: type[FilePlace], is_answer_lost: bool
) -> None:
    for step in itertools.count(1):
        place = kind()
        process = owner(place)
        process.publish(9)
        process.before(nothing)
        process.steps.fails_at, process.steps.is_answer_lost = step, is_answer_lost
        with suppress(PublishError):
            publish_chunk(process, 9)
        if process.steps.count < step:
            break
        require_whole(place, 20, step)
    assert step > 3


@in_each_place
def test_a_chunk_that_a_user_has_removed_stays_removed(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place)
    publish_chunk(process, 0)
    assert place.visible() == [1, 2]
    place.delete_epochs()
    owner(place)
    assert place.visible() == []
    assert not [name for name in place.names() if name.startswith("_staging")]
