"""Tables in a DuckLake: an epoch is one snapshot, of all of them."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.formats import DUCKLAKE
from slackwater.spark_sink.tables.by_transaction.names import identifier, table_address
from slackwater.spark_sink.tables.database_store import DatabaseStore
from slackwater.spark_sink.tables.in_ducklake.address import LakeAddress
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.tables.in_ducklake.ducklake_access import DuckLakeAccess
    from slackwater.spark_sink.tables.in_ducklake.ducklake_log import DuckLakeLog


class DuckLake(DatabaseStore):
    """The tables of one pipeline in a DuckLake.

    Args:
        address: where it is.
        place: of staged epochs.
        application: the pipeline's.
    """

    using: ClassVar[str] = DUCKLAKE
    is_one_commit: ClassVar[bool] = True
    version_clause: ClassVar[str] = "AT (VERSION => {})"

    def __init__(self, address: LakeAddress, place: EpochPlace, application: str) -> None:
        self.root = address.files
        self._address = address
        self._place = place
        self._application = application

    @cached_property
    def log(self) -> DuckLakeLog:
        """The log of all tables."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.tables.in_ducklake.ducklake_log import DuckLakeLog

        return DuckLakeLog(self._address, self._place, self._application)

    def quoted(self, name: str) -> str:
        """Return a name as DuckDB has it; see TableStore."""
        return identifier(name)

    def name(self, path: str) -> str:
        """Return the table's name in DuckDB; Spark does not reach it."""
        address = table_address(path)
        return f"lake.{address.quoted}" if address.schema else f"lake.main.{address.quoted}"

    def version_at(
        self,
        spark: SparkSession,
        path: str,
        application: str,
        low_watermark: datetime,
    ) -> int | None:
        """Return the snapshot of an epoch; see TableStore."""
        snapshot = self.log.snapshot_at(low_watermark)
        if snapshot is None:
            raise AsOfTimeError(
                f"{self.root}: the snapshot of {datetime_to_rfc3339(low_watermark)} was removed.",
                "Name a later time, or have sink.keep_versions keep them for longer",
            )
        return snapshot if self.access(spark, path, application).has_rows_at(snapshot) else None

    def access(self, spark: SparkSession, path: str, application: str) -> DuckLakeAccess:  # noqa: ARG002
        """Return the access to a table; see TableStore."""
        from slackwater.spark_sink.tables.in_ducklake.ducklake_access import DuckLakeAccess

        return DuckLakeAccess(self.log, table_address(path))
