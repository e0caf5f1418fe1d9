"""Files of dead letters: each is there once and whole, at whichever steps two processes meet."""

import itertools
from contextlib import suppress

import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.dead_letters import FOLDER, publish_files
from tests.support.file_places import PLACES, FilePlace, Hold, Process, at_two_switches, freeze_at

LETTERS = f"{FOLDER}/letters"
CONTENT = b"letters"
in_each_place = pytest.mark.parametrize("kind", PLACES.values(), ids=list(PLACES))


class DiedError(Exception):
    """The process dies here."""


def publish(process: Process) -> None:
    """Publish letters that a task has written."""
    written = [process.written(CONTENT, FOLDER)]
    with process.place.watching(process.steps):
        publish_files(written, process.opened, process.log.owner, LETTERS)


def take_over_and_publish(process: Process) -> None:
    """Do what a successor does that reads the epoch again."""
    with process.place.watching(process.steps):
        process.opened.remove(process.opened.staged())
    publish(process)


def require_letters(place: FilePlace, *steps: int) -> None:
    """Check that each letter is there once."""
    contents = [place.read(name) for name in place.names()]
    assert contents == [CONTENT], steps
    assert place.names()[0].startswith(f"{LETTERS}/")


@pytest.mark.parametrize("dies", [False, True])
@in_each_place
def test_at_no_step_are_letters_lost_or_doubled(kind: type[FilePlace], dies: bool) -> None:
    for step in itertools.count(1):
        place = kind()

        def succeed(place: FilePlace = place) -> None:
            take_over_and_publish(Process(place))
            if dies:
                raise DiedError

        former = Process(place, freeze_at(step, succeed))
        # Not an error of the user's, which would stop the pipeline.
        with suppress(PublishError, DiedError):
            publish(former)
        last = Process(place)
        publish(last)
        assert dies or not last.opened.staged()
        last.opened.remove(last.opened.staged())
        require_letters(place, step)
        if former.steps.count < step:
            break
    assert step > 2


@in_each_place
def test_letters_that_are_being_removed_get_no_name(kind: type[FilePlace]) -> None:
    for step in itertools.count(1):
        for other_step in itertools.count(1):
            place = kind()
            former, successor = Process(place), Process(place)
            here, there = Hold(step), Hold(other_step)
            published: list[list[str]] = []
            succeeded: list[bool] = []

            def go_on(former: Process = former, published: list[list[str]] = published) -> None:
                publish(former)
                # What it takes for published, though the other one goes on removing.
                published.append([n for n in former.place.names() if n.startswith(LETTERS)])

            def succeed(successor: Process = successor, succeeded: list[bool] = succeeded) -> None:
                take_over_and_publish(successor)
                succeeded.append(True)

            at_two_switches(former, go_on, here, successor, succeed, there)
            assert succeeded, (step, other_step)
            assert [] not in published, (step, other_step)
            require_letters(place, step, other_step)
            if there.count < other_step:
                break
        assert other_step > 2
        if here.count < step:
            break
    assert step > 2
