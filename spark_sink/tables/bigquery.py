"""Tables in a dataset of BigQuery's: an epoch is one commit, for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.output.bigquery.address import parse_address
from slackwater.spark_sink.table_names import plain_name
from slackwater.spark_sink.tables.in_bigquery.mirroring import Mirroring
from slackwater.spark_sink.tables.table_changes import SOURCE_TABLE_PROPERTY
from slackwater.spark_sink.tables.table_store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
    from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog

_WIDE: Final = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
_NARROW: Final = re.compile(r"\b(INT|FLOAT)\b")


class BigQuery(TableStore):
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
    has_one_log: ClassVar[bool] = True
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

    def access(self, spark: SparkSession, path: str, application: str) -> BigQueryAccess:  # noqa: ARG002
        """Return the access to a table; see TableStore."""
        from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
        from slackwater.spark_sink.tables.in_bigquery.upserted_mirror import UpsertedMirror

        table = parse_address(path).table
        if self._mirroring is not None and self._mirroring.consistency == "table":
            return UpsertedMirror(self.log, table, self._mirroring.max_staleness_ms)
        return BigQueryAccess(self.log, table)

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Take the log over; see TableStore."""
        return self.log.take_over(logged)

    def at_once(
        self,
        low_watermark: datetime,
        *,
        chunk: int | None = None,
        is_stated: bool = False,
        incomplete: Collection[str] = (),
    ) -> AbstractContextManager[None]:
        """Commit to all tables at the end; see TableStore."""
        return self.log.committing(
            low_watermark, chunk, is_stated=is_stated, incomplete=sorted(incomplete)
        )

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists; see TableStore."""
        return self.access(spark, path, self._application).exists()

    def list_tables(self, spark: SparkSession) -> list[str]:  # noqa: ARG002
        """Return the plain names of the pipeline's tables; see TableStore."""
        from slackwater.spark_sink.tables.in_bigquery.dataset_log import properties_of

        own = self.log.own_tables().values()
        for table in own:
            self.log.require_usable(table)
        sources = (properties_of(table).get(SOURCE_TABLE_PROPERTY) for table in own)
        return [plain_name(source) for source in sources if source is not None]

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:  # noqa: ARG002
        """Return none: BigQuery has its own way to keep versions."""
        return {}

    def read(self, spark: SparkSession, path: str, within: RowRange | None = None) -> DataFrame:
        """Read a table as it is now; see TableStore."""
        return self.access(spark, path, self._application).read(spark, within)

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read a table, and the low watermark of all, by one query; see TableStore."""
        return self.access(spark, path, self._application).read_at_watermark(spark)

    def version_at(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        application: str,  # noqa: ARG002
        low_watermark: datetime,  # noqa: ARG002
    ) -> int | None:
        """Refuse: BigQuery has times for its versions, not Spanner's; see TableStore."""
        raise AsOfTimeError(f"{path} has no versions by Spanner's time.")
