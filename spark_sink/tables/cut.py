"""The versions of several tables at one low watermark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.output.watermark_lines import LogLine
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.timestamp import datetime_to_rfc3339


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The version of a mirror at a time.

    Attributes:
        table: the full name in Spanner.
        name: the mirror's quoted name in SQL: Spark's, BigQuery's, or DuckDB's for a lake that is
            attached as `lake`.
        version: a Delta version, the id of a snapshot, or in BigQuery a time in microseconds; None
            if it had no rows yet.
        settings: those by which a session knows the name, in this order.
        clause: what stands behind the name for a version {}.
        quoted: quotes a name in SQL.
        view_statement: see TableStore.
    """

    table: str
    name: str
    version: int | None
    settings: Mapping[str, str]
    clause: str = "VERSION AS OF {}"
    quoted: Callable[[str], str] = identifier
    view_statement: str = "CREATE OR REPLACE TEMPORARY VIEW"


@dataclass(frozen=True, slots=True)
class Cut:
    """The versions of all mirrors at one low watermark, in the order of their names."""

    low_watermark: datetime
    tables: tuple[TableVersion, ...]


def low_watermark_at(log: WatermarkLog, time: datetime | None) -> LogLine:
    """Return the line of the newest low watermark at or before a time; for None, the newest of all.

    Raises:
        AsOfTimeError: there is none, or another pipeline has written it.
    """
    logged = log.last(time)
    if logged is None:
        first = log.first()
        if time is None or first is None:
            raise AsOfTimeError(
                f"{log.path} has no low watermark yet.",
                "It gets the first one when the initial scan or the first epoch is complete",
            )
        raise AsOfTimeError(
            f"{log.path} has no low watermark at or before {datetime_to_rfc3339(time)}.",
            f"The first one is {datetime_to_rfc3339(first.low_watermark)}",
        )
    if logged.pipeline != log.pipeline:
        raise AsOfTimeError(
            f"the low watermark {datetime_to_rfc3339(logged.low_watermark)} in {log.path} is of"
            f" another pipeline, {logged.pipeline!r}.",
            "Name the settings of that pipeline",
        )
    return logged


def incomplete_error(table: str, low_watermark: datetime) -> AsOfTimeError:
    """Return the error of a mirror that lacked rows of its table at a low watermark."""
    return AsOfTimeError(
        f"the mirror of {table} was not complete at low watermark"
        f" {datetime_to_rfc3339(low_watermark)}: its table was still being read.",
        "Name another time, or the other tables: --table",
    )
