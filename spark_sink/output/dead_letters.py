"""Dead letters: records that can't be converted are set aside whole, with the reason."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import BadRecordError, ObjectStoreError, PublishError
from slackwater.spark_sink.formats import JSON, TEXT, write_options
from slackwater.spark_sink.java import java_raised
from slackwater.spark_sink.output.epoch_names import epoch_name
from slackwater.spark_sink.table_names import plain_name
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.output.file_writer import WrittenFile

_log = logging.getLogger(__name__)

FOLDER: Final = "_dead_letters"
# In errors of Spark's, and in that of typed changes.
_CONDITIONS: Final = (
    "[CAST_INVALID_INPUT",
    "[CAST_OVERFLOW",
    "[CONVERSION_INVALID_INPUT",
    "[MALFORMED_RECORD_IN_PARSING",
    "[NUMERIC_VALUE_OUT_OF_RANGE",
    "typed_changes.ColumnValueError",
)


def spark_errors() -> tuple[type[Exception], type[Exception]]:
    """Return the classes of the errors of Spark's calls."""
    from pyspark.errors import PySparkException

    # PySpark passes on Java errors that it has no class for, such as those of Delta's writes.
    return (PySparkException, java_raised())


def is_bad_record(error: Exception) -> bool:
    """Return whether a query failed at a value that is not of its column's type."""
    text = str(error)
    return any(condition in text for condition in _CONDITIONS)


class DeadLetters:
    """The dead letters of one output; a replay with the same ones adds none.

    Args:
        place: the output's.
        is_enabled: False if a bad record stops the pipeline.
        mod_columns: columns that identify a bad row's mods: some of key, server_transaction_id,
            record_sequence and mod_number.
    """

    def __init__(
        self, place: EpochPlace, *, is_enabled: bool, mod_columns: Sequence[str] = ("key",)
    ) -> None:
        self._place = place
        self._is_enabled = is_enabled
        self._mod_columns = tuple(mod_columns)

    def write(
        self,
        rows: Callable[[bool], DataFrame],
        write: Callable[[DataFrame], None],
        changes: DataFrame,
        table: str,
        low_watermark: datetime,
        *,
        chunk: int | None = None,
    ) -> None:
        """Write rows; if some can't be converted, set those aside and write the others.

        Args:
            rows: makes the rows from the changes; with True, checked rows as for set_aside().
            write: writes all rows or none.
            changes, table, low_watermark, chunk: see set_aside().

        Raises:
            BadRecordError: a record can't be converted, and dead letters are off.
        """
        try:
            write(rows(False))
        except spark_errors() as error:
            if not is_bad_record(error):
                raise
            write(self.set_aside(changes, table, rows(True), low_watermark, chunk=chunk))

    def set_aside(
        self,
        changes: DataFrame,
        table: str,
        checked: DataFrame,
        low_watermark: datetime,
        *,
        chunk: int | None = None,
    ) -> DataFrame:
        """Set the bad rows aside, and return the others.

        Args:
            changes: the records that the rows come from, rows of the output's contract.
            table: the table's full name.
            checked: rows with key and bad_columns, as latest_changes() makes them, and the other
                columns that identify a mod.
            low_watermark: the epoch's.
            chunk: the chunk's number in an initial scan; None for an epoch.

        Raises:
            BadRecordError: a record can't be converted, and dead letters are off.
        """
        from pyspark.sql import functions as F

        bad = checked.where(F.size("bad_columns") > 0).select(*self._mod_columns, "bad_columns")
        identity = F.xxhash64(*self._mod_columns, "bad_columns")
        (all_bad,) = bad.agg(
            F.count(F.lit(1)).alias("rows"),
            F.bit_xor(identity).alias("identity"),
            F.first("bad_columns").alias("bad_columns"),
        ).collect()
        if all_bad["rows"] and not self._is_enabled:
            raise BadRecordError(
                f"{table}: a value of column {', '.join(all_bad['bad_columns'])} is not of the"
                f" column's type, in the epoch up to {datetime_to_rfc3339(low_watermark)}.",
                "Set sink.bad_records to dead_letter to have such records set aside",
            )
        if not all_bad["rows"]:
            return checked
        table_changes = changes.where(F.col("table_name") == table)
        mods = table_changes.select(
            F.struct("*").alias("record"),
            *("server_transaction_id", "record_sequence"),
            F.posexplode("mods.keys").alias("mod_number", "key"),
        )
        letters = mods.join(bad, on=list(self._mod_columns)).select(
            F.lit(table).alias("table_name"), "key", "bad_columns", "record"
        )
        about = f"{plain_name(table)}-{all_bad['identity'] % 2**64:016x}"
        folder = publish_letters(letters, self._place, about, low_watermark, chunk)
        _log.warning("records of %s can't be converted and were set aside in %s", table, folder)
        return checked.where(F.size("bad_columns") == 0)


def publish_letters(
    letters: DataFrame, place: EpochPlace, about: str, low_watermark: datetime, chunk: int | None
) -> str:
    """Write letters to a folder of their own, unless it is there; return the folder.

    A folder with its name is complete, and no process removes it: neither a replay nor a former
    owner that wakes up.

    Args:
        letters: a row for each.
        place: of the output.
        about: tells them from others of the epoch, such as by a hash: the same letters have the
            same, others another.
        low_watermark: the epoch's.
        chunk: the chunk's number in an initial scan; None for an epoch.

    Raises:
        PublishError: another process has removed the staged letters.
    """
    from pyspark.sql import functions as F

    from slackwater.spark_sink.output.file_writer import written_by_tasks

    # Without =, so that readers do not take it for a partition column.
    time = epoch_name(low_watermark, chunk).partition("=")[2]
    name = f"{FOLDER}/{time}-{about}"
    line = F.to_json(F.struct(*letters.columns), dict(write_options(JSON)))
    # A store gives names one by one: so there is one file, of one name.
    lines = letters.select(line.alias("value")).repartition(1)
    owner = uuid.uuid4().hex
    written = written_by_tasks(lines, place.writer(owner, FOLDER, TEXT, ()))
    publish_files(written, place, owner, name)
    return f"{place.path}/{name}"


def publish_files(written: Sequence[WrittenFile], place: EpochPlace, owner: str, name: str) -> None:
    """Give files a permanent name, unless there are files of this name.

    Args:
        written: by tasks, of one owner.
        place: of the output.
        owner: the owner's name.
        name: of the folder.

    Raises:
        PublishError: they are gone, or the place refuses or fails.
    """
    from slackwater.spark_sink.output.epoch_place import Form

    with place.translating():
        try:
            for file in place.gather(owner, FOLDER, written, name, Form(TEXT, JSON)):
                place.give_name(file)
        except ObjectStoreError as error:
            raise PublishError(
                f"{place.path}: the dead letters {name} were removed before they had their name.",
                "Another process may have taken the pipeline over; the epoch is read again",
            ) from error
        finally:
            place.forget(owner)
