"""The fixtures that several modules here share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.reader.change_stream import Dialect
from tests.support.changing import ChangingDatabase, Watching
from tests.support.emulators import NewDatabase


@pytest.fixture(params=list(Dialect), ids=str)
def watching(
    request: pytest.FixtureRequest, new_database: NewDatabase, tmp_path: Path
) -> Iterator[Watching]:
    """Return a function that makes a database with a chosen change stream, in each dialect."""
    made: list[ChangingDatabase] = []

    def make(watched: str) -> ChangingDatabase:
        dialect = Dialect(request.param)
        made.append(ChangingDatabase(dialect, new_database, str(tmp_path), watched))
        return made[-1]

    yield make
    for database in made:
        database.close()
