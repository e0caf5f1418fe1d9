"""The choice of an epoch's records to write, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.message_rows import MessageRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The column with the day of the commit, in UTC.
DATE_COLUMN: Final = "date"


@dataclass(frozen=True, slots=True)
class Preparation:
    """The conversion of the rows that are read to those that are written.

    Attributes:
        record_filter: which records are written, and which of their columns.
        messages: makes the rows to write of the contract's; None writes those as they are.
        has_date: whether DATE_COLUMN is added.
        distinct: the columns of records whose values are collected.
        has_message_bytes: whether the bytes of messages are estimated.
    """

    record_filter: RecordFilter = field(default_factory=RecordFilter)
    messages: MessageRows | None = None
    has_date: bool = False
    distinct: tuple[str, ...] = ()
    has_message_bytes: bool = False

    def schema_of(self, records: StructType) -> StructType:
        """Return the columns of the rows that are written of records."""
        from pyspark.sql.types import DateType, StructType

        written = StructType(list(records if self.messages is None else self.messages.schema))
        return written.add(DATE_COLUMN, DateType()) if self.has_date else written

    def unfiltered(self) -> Preparation:
        """Return the same for an initial scan, whose reads are filtered."""
        return replace(self, record_filter=RecordFilter())
