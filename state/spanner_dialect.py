"""Spanner itself as the metadata store: the making of its schema, and the meaning of its errors.

Spanner changes schemas outside of transactions, a batch of statements at a time, and takes up to a
minute for a batch. So the tables are made in one batch, and a process completes what another that
died has left incomplete.
"""

import re
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine
from sqlalchemy.schema import CreateIndex, CreateTable

from slackwater.state.tables import HEAD, metadata

NAME: Final = "spanner"
# A schema change of the service takes longer than any transaction.
DDL_PATIENCE_S: Final = 180.0
_DATABASE: Final = re.compile(r"projects/[^/]+/instances/[^/]+/databases/[^/]+")
_VERSION: Final = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), primary_key=True),
)
_RETRYABLE: Final = frozenset(
    {
        "Aborted",
        "DeadlineExceeded",
        "InternalServerError",
        "ResourceExhausted",
        "RetryAborted",
        "RetryError",
        "ServiceUnavailable",
        "TooManyRequests",
        "Unknown",
    }
)
# Two processes make the schema at once.
_MEANWHILE: Final = ("Duplicate name in schema", "concurrent schema change")
_LIBRARIES: Final = ("google.api_core.", "google.auth.", "google.cloud.spanner")


def names_a_database(url: URL) -> bool:
    """Return False if the dialect would fail on a URL with an error of Python's own."""
    return _DATABASE.fullmatch(url.database or "") is not None


def make_tables(engine: Engine) -> None:
    """Create the missing parts of the newest schema, and record its version."""
    inspector = sa.inspect(engine)
    existing = set(inspector.get_table_names())
    tables = [table for table in (*metadata.sorted_tables, _VERSION) if table.name not in existing]
    indexes = [
        index
        for table in metadata.sorted_tables
        for index in sorted(table.indexes, key=lambda index: str(index.name))
        if table.name not in existing
        or index.name not in {of_table["name"] for of_table in inspector.get_indexes(table.name)}
    ]
    with engine.connect() as connection, connection.begin():
        for table in tables:
            connection.execute(CreateTable(table))
        for index in indexes:
            connection.execute(CreateIndex(index))
    with engine.connect() as connection, connection.begin():
        connection.execute(sa.delete(_VERSION).where(_VERSION.c.version_num != HEAD))
        if connection.execute(sa.select(_VERSION)).first() is None:
            connection.execute(sa.insert(_VERSION), {"version_num": HEAD})


def is_spanner_error(error: BaseException) -> bool:
    """Return True for an error of Spanner's libraries that SQLAlchemy does not wrap."""
    return type(error).__module__.startswith(_LIBRARIES)


def is_retryable(error: BaseException) -> bool:
    """Return True if another attempt may well succeed, or another process is making the schema."""
    return is_spanner_error(error) and (
        type(error).__name__ in _RETRYABLE or any(text in str(error) for text in _MEANWHILE)
    )
