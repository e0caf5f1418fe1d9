"""Metadata stores for the tests, one empty database each: SQLite, PostgreSQL, Spanner."""

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.store import Store
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import create_database

STORES = ("sqlite", "postgresql", "spanner")
_NUMBERS = itertools.count()


@pytest.fixture
def new_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes an empty store of a kind and returns its URL."""

    def make(kind: str) -> str:
        match kind:
            case "sqlite":
                return f"sqlite:///{tmp_path / 'folder' / 'state.db'}"
            case "postgresql":
                made: str = request.getfixturevalue("new_postgres_url")()
                return made
            case _:
                return _spanner_database(request.getfixturevalue("emulator"))

    return make


@pytest.fixture(scope="session")
def orders_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in a file, with the pipeline orders: to make its tables takes longer than a test."""
    file = tmp_path_factory.mktemp("orders") / "state.db"
    store = Store.open(f"sqlite:///{file}", migrate=True)
    store.ensure_pipeline("orders", "stream")
    store.close()
    return file


@pytest.fixture
def orders_store(orders_file: Path, tmp_path: Path) -> Iterator[Store]:
    """A store in the file state.db of tmp_path, with the pipeline orders."""
    copy = shutil.copy(orders_file, tmp_path / "state.db")
    store = Store.open(f"sqlite:///{copy}", migrate=False)
    yield store
    store.close()


def _spanner_database(emulator: Emulator) -> str:
    name = f"store-{next(_NUMBERS)}-{time.time_ns() % 10**9}"
    database = ChangeStream(
        "test-project", "test-instance", name, "none", endpoint=plaintext(emulator.host)
    )
    create_database(database, Dialect.GOOGLE_STANDARD_SQL, [])
    return f"spanner+spanner:///{database.database_path}"
