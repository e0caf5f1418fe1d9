"""A database whose schema changes while a pipeline reads it, in both dialects."""

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import database_of, update_ddl
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop

_STATES = itertools.count()
_POSTGRESQL = (
    (r"`", '"'),
    (r"INT64", "bigint"),
    (r"STRING\(MAX\)", "varchar"),
    (r"STRING\((\d+)\)", r"varchar(\1)"),
    (r"SET OPTIONS", "SET"),
    (r"OPTIONS", "WITH"),
)


def spell(dialect: Dialect, text: str) -> str:
    """Translate a GoogleSQL statement with `quoted` names to a dialect."""
    if dialect is Dialect.POSTGRESQL:
        for pattern, replacement in _POSTGRESQL:
            text = re.sub(pattern, replacement, text)
    return text


def table(dialect: Dialect, name: str, columns: str = "`A` STRING(10), `B` STRING(10)") -> str:
    """Return the CREATE TABLE of a `quoted` name, with the key `Id`."""
    body, key = f"`Id` INT64 NOT NULL, {columns}", "PRIMARY KEY (`Id`)"
    if dialect is Dialect.POSTGRESQL:
        return spell(dialect, f"CREATE TABLE {name} ({body}, {key})")
    return f"CREATE TABLE {name} ({body}) {key}"


def renamed(*steps: str) -> list[str]:
    """Return ALTER TABLE statements with `quoted` names, for steps such as "T X"."""
    return [f"ALTER TABLE `{'` RENAME TO `'.join(step.split())}`" for step in steps]


@dataclass(frozen=True, slots=True)
class Change:
    """The parts of a data change record with one mod that the tests check."""

    table: str
    mod_type: str
    capture: str
    types: Mapping[str, str]
    keys: Mapping[str, Any]
    new: Mapping[str, Any]
    old: Mapping[str, Any]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in column_types, in order."""
        return tuple(self.types)


def changes(records: pa.Table) -> list[Change]:
    """Return an epoch's records in the order in which the database changed."""
    order = [(name, "ascending") for name in ("commit_timestamp", "record_sequence")]
    rows = []
    for row in records.sort_by(order).to_pylist():
        (mod,) = row["mods"]
        keys, new, old = (json.loads(mod[f] or "{}") for f in ("keys", "new_values", "old_values"))
        types = {c["name"]: json.loads(c["type"])["code"] for c in row["column_types"]}
        rows.append(
            Change(
                row["table_name"],
                row["mod_type"],
                row["value_capture_type"],
                types,
                keys,
                new or {},
                old or {},
            )
        )
    return rows


class ChangingDatabase:
    """Tables `T` and `U`, the change stream `S`, and a pipeline that reads it from now on.

    Args:
        watched: what the stream watches, as written after FOR.
        new_database: the fixture new_database.
        state_folder: where the pipelines' metadata stores go.
    """

    def __init__(
        self, dialect: Dialect, new_database: NewDatabase, state_folder: str, watched: str
    ) -> None:
        self.dialect = dialect
        self._state_folder = state_folder
        self._pipelines: list[EpochLoop] = []
        self.make_stream = spell(dialect, f"CREATE CHANGE STREAM `S` FOR {watched}")
        tables = [table(dialect, name) for name in ("`T`", "`U`")]
        self.stream: ChangeStream = new_database(dialect, [*tables, self.make_stream], "S")
        self._ids = itertools.count(1)
        self.client: Any = database_of(self.stream, dialect)
        self.clock = Connection(self.stream)
        self.start_ns = self.clock.strong_read_timestamp_ns()
        self.loop = self.pipeline(self.start_ns)
        # The first epoch ends where it starts, so that the next one holds all that a test writes.
        assert self.loop.epoch().num_rows == 0

    def pipeline(self, start_ns: int, **options: str) -> EpochLoop:
        """Make a pipeline with its own metadata store and "checkpoint"."""
        state_url = f"sqlite:///{self._state_folder}/state-{next(_STATES)}.db"
        loop = EpochLoop(self.stream, state_url, start_ns=start_ns, options=options)
        self._pipelines.append(loop)
        return loop

    def ddl(self, *statements: str) -> None:
        """Run schema statements in one request."""
        update_ddl(self.stream, [spell(self.dialect, statement) for statement in statements])

    def insert(self, name: str = "T", **values: Any) -> int:
        """Insert a row with a new id in its own transaction."""
        row_id = next(self._ids)
        with self.client.batch() as batch:
            batch.insert(name, ("Id", *values), [[row_id, *values.values()]])
        return row_id

    def update(self, row_id: int, name: str = "T", **values: Any) -> None:
        """Update a row in its own transaction."""
        with self.client.batch() as batch:
            batch.update(name, ("Id", *values), [[row_id, *values.values()]])

    def close(self) -> None:
        for pipeline in self._pipelines:
            pipeline.close()
        self.clock.close()

    def create_table(self, name: str, columns: str | None = None) -> None:
        """Create a table of a `quoted` name, by default with the columns of `T`."""
        text = table(self.dialect, name, columns) if columns else table(self.dialect, name)
        update_ddl(self.stream, [text])

    def read(self) -> list[Change]:
        """Return all changes since the last read as one epoch."""
        return changes(self.loop.epoch())


Watching = Callable[[str], ChangingDatabase]
