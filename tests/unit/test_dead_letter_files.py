"""Files of dead letters: of two processes at any two steps, each letter is there once."""

from __future__ import annotations

from contextlib import suppress

import pytest

from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.dead_letters import FOLDER, publish_files
from tests.file_places import PLACES, FilePlace, Process, freeze_at

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


@pytest.mark.parametrize("dies", [False, True])
@in_each_place
def test_at_no_step_are_letters_lost_or_doubled(kind: type[FilePlace], dies: bool) -> None:
    step = 0
    while True:
        step += 1
        place = kind()

        def succeed(place: FilePlace = place) -> None:
            successor = Process(place)
            # As one does that takes the pipeline over.
            successor.opened.remove(successor.opened.staged())
            publish(successor)
            if dies:
                raise DiedError

        former = Process(place, freeze_at(step, succeed))
        with suppress(SinkError, DiedError):
            publish(former)
        last = Process(place)
        publish(last)
        last.opened.remove(last.opened.staged())
        contents = [place.read(name) for name in place.names()]
        assert contents == [CONTENT], step
        assert place.names()[0].startswith(f"{LETTERS}/")
        if former.steps.count < step:
            break
    assert step > 2
