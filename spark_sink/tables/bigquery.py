"""Tables in a dataset of BigQuery's: an epoch is one commit, for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.output.bigquery.address import parse_address
from slackwater.spark_sink.tables.database_store import DatabaseStore
from slackwater.spark_sink.tables.in_bigquery.mirroring import Mirroring
from slackwater.timestamp import datetime_to_rfc3339, datetime_to_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
    from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog

_WIDE: Final = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
_NARROW: Final = re.compile(r"\b(INT|FLOAT)\b")


class BigQuery(DatabaseStore):
    """The tables of one pipeline in a dataset.

    Args:
        root: the dataset's URL.
        options: see Clients.
        place: of staged epochs, and of the log.
        application: the pipeline's.
        mirroring: how mirrors are changed; None if the tables are typed changelogs.
    """

    using: ClassVar[str] = BIGQUERY
    has_nulls_in_arrays: ClassVar[bool] = False
    version_clause: ClassVar[str] = "FOR SYSTEM_TIME AS OF TIMESTAMP_MICROS({})"
    view_statement: ClassVar[str] = "CREATE OR REPLACE TEMPORARY TABLE"
    # BigQuery's documentation, "Flexible column names".
    beginnings_refused: ClassVar[Sequence[str]] = (
        "_TABLE_",
        "_FILE_",
        "_PARTITION",
        "_ROW_TIMESTAMP",
        "__ROOT__",
        "_COLIDENTIFIER",
        "_CHANGE_SEQUENCE_NUMBER",
        "_CHANGE_TYPE",
        "_CHANGE_TIMESTAMP",
    )
    marks_refused: ClassVar[str] = '!"$()*,./;?@[\\]^`{}~'

    def __init__(
        self,
        root: str,
        options: Mapping[str, str],
        place: EpochPlace,
        application: str,
        mirroring: Mirroring | None,
    ) -> None:
        self.root = root.rstrip("/")
        self._options = options
        self._place = place
        self._application = application
        self._mirroring = mirroring

    @cached_property
    def log(self) -> DatasetLog:
        """The log of all tables."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.bigquery.dataset import Dataset
        from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog

        dataset = Dataset(parse_address(self.root or ""), self._options)
        return DatasetLog(dataset, self._place, self._application, self._mirroring)

    def holds(self, stored: str, wanted: str) -> bool:
        """Return whether a type is as BigQuery has another one: it has no narrow ones.

        A column's description says which one it is, but others may change that.
        """
        return stored in (wanted, _NARROW.sub(lambda match: _WIDE[match[0]], wanted))

    def name(self, path: str) -> str:
        """Return the table's name in BigQuery; Spark does not reach it."""
        return f"`{parse_address(path).id}`"

    def version_at(
        self, spark: SparkSession, path: str, application: str, low_watermark: datetime
    ) -> int | None:
        """Return a time by BigQuery's clock, in microseconds; see TableStore."""
        if self._mirroring is None or self._mirroring.consistency != "transaction":
            return super().version_at(spark, path, application, low_watermark)
        time_us = self.log.marks.time_of(low_watermark)
        if time_us is None:
            raise AsOfTimeError(
                f"{self.root} can't be read at {datetime_to_rfc3339(low_watermark)} any more.",
                "BigQuery keeps what tables were for max_time_travel_hours of the dataset",
            )
        table = self.log.dataset.table(parse_address(path).table)
        is_there = table is not None and datetime_to_us(table.created) < time_us
        return time_us if is_there else None

    def access(self, spark: SparkSession, path: str, application: str) -> BigQueryAccess:  # noqa: ARG002
        """Return the access to a table; see TableStore."""
        from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
        from slackwater.spark_sink.tables.in_bigquery.upserted_mirror import UpsertedMirror

        table = parse_address(path).table
        if self._mirroring is not None and self._mirroring.consistency == "table":
            return UpsertedMirror(self.log, table, self._mirroring.max_staleness_ms)
        return BigQueryAccess(self.log, table)
