"""Tables in a PostgreSQL database: an epoch is one transaction, for all of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.formats import POSTGRESQL
from slackwater.spark_sink.tables.by_transaction.names import table_address
from slackwater.spark_sink.tables.database_store import DatabaseStore
from slackwater.spark_sink.tables.in_postgresql.address import NAME_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
    from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog


# Before the names of most columns of typed changelogs.
_PREFIX: Final = "before."


class Postgresql(DatabaseStore):
    """The tables of one pipeline in a database.

    Args:
        root: the database's URL.
        place: of staged epochs.
        application: the pipeline's.
        are_mirrors: they are mirrors, and no typed changelogs.
    """

    using: ClassVar[str] = POSTGRESQL
    is_one_commit: ClassVar[bool] = True
    # Those that each table has (PostgreSQL's documentation, "System Columns").
    _SYSTEM_COLUMNS: ClassVar = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})

    def __init__(
        self, root: str, place: EpochPlace, application: str, *, are_mirrors: bool = True
    ) -> None:
        self.root = root
        self._place = place
        self._application = application
        self.name_max = NAME_MAX if are_mirrors else NAME_MAX - len(_PREFIX)

    @cached_property
    def log(self) -> PostgresqlLog:
        """The log of all tables."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog

        return PostgresqlLog(self.root or "", self._place, self._application)

    def takes_column(self, name: str) -> bool:
        """Return whether a column can have a name; see TableStore."""
        return (
            len(name.encode()) <= (self.name_max or NAME_MAX) and name not in self._SYSTEM_COLUMNS
        )

    def name(self, path: str) -> str:
        """Return the table's name in PostgreSQL; Spark does not reach it."""
        return table_address(path, NAME_MAX).quoted

    def access(self, spark: SparkSession, path: str, application: str) -> PostgresqlAccess:  # noqa: ARG002
        """Return the access to a table; see TableStore."""
        from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess

        return PostgresqlAccess(self.log, table_address(path, NAME_MAX))
