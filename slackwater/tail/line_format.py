"""The format of the lines that `slackwater tail` writes: text, JSON or CSV."""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from slackwater.printing import in_one_line
from slackwater.spark_sink.envelopes.envelope import Envelope, Message, dumps
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are Python objects at the same time.
_ROWS_AT_ONCE: Final = 1_000


class LineFormat(StrEnum):
    """The format of a line: text for people, a JSON object, or CSV with a header."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class LineFormatter:
    """A formatter of records as lines.

    Attributes:
        line_format: text, JSON or CSV.
        envelope: of the changes.
        record_filter: which records are written, and which of their columns.
        resolved_ms: the least time between two resolved lines; None to write none.
        kind_column: the column with the kind of a change.
    """

    kind_column: ClassVar = "mod_type"

    line_format: LineFormat
    envelope: Envelope
    record_filter: RecordFilter
    resolved_ms: int | None

    def header(self) -> str:
        """Return CSV's header, or nothing in other formats."""
        return "table,key,value\n" if self.line_format is LineFormat.CSV else ""

    def lines(self, records: "pa.Table") -> Iterator[str]:
        """Yield the lines of records in their order, some lines at a time."""
        for batch in records.to_batches(max_chunksize=_ROWS_AT_ONCE):
            rows = batch.to_pylist()
            yield "".join(
                self._line(message, row) for row in rows for message in self.messages(row)
            )

    def messages(self, row: dict[str, Any]) -> Iterable[Message]:
        """Return the messages of a record; none if it is left out."""
        if not self.record_filter.keeps(row):
            return []
        return self.envelope.messages(self.record_filter.column_filter.apply_to_row(row))

    def resolved_line(self, watermark_ns: int) -> str:
        """Return the line that says that nothing up to a low watermark is missing."""
        return self._line(self.envelope.resolved(watermark_ns).as_json(), None)

    def _line(self, message: Message, row: dict[str, Any] | None) -> str:
        return f"{in_one_line(self._text(message, row))}\n"

    def _text(self, message: Message, row: dict[str, Any] | None) -> str:
        if self.line_format is LineFormat.CSV:
            return _csv(message)
        if self.line_format is LineFormat.JSON:
            return _json(message)
        parts = [message.table, message.key, message.value]
        when = (
            []
            if row is None
            else [datetime_to_rfc3339(row["commit_timestamp"]), row[self.kind_column]]
        )
        return " ".join([*when, *(part for part in parts if part is not None)])


def _csv(message: Message) -> str:
    """Return a line as a SQL client prints a core changefeed's; a resolved line has NULLs."""
    if message.table is None:
        cells = ["NULL", "NULL", message.value]
    else:
        cells = [message.table, message.key, message.value]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _json(message: Message) -> str:
    # Table, key and value are JSON already.
    if message.table is None:
        return str(message.value)
    table = dumps(message.table)
    return f'{{"table":{table},"key":{message.key or "null"},"value":{message.value or "null"}}}'
