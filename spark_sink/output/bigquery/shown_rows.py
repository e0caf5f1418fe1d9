"""Rows of BigQuery's tables, as a log of files has epochs shown in them.

A commit of the log names buffered streams, each with the offset to which it is flushed. To flush it
again changes nothing, so whoever finds the commit may do it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.output.bigquery.row_stream import Extent, StreamGoneError
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.epoch_names import parse_epoch_name
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.timestamp import datetime_to_rfc3339

# The chunks of a scan that are shown: their rows don't tell.
_CHUNKS: Final = "_chunks"
_FLUSHES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ShownChange:
    """The content of a commit.

    Attributes:
        extents: rows to show, in any order.
        last: rows to show when those are; None for none.
        merges: of rows that are shown, into other tables; in JSON.
        incomplete: the full names of tables that lack rows then.
    """

    extents: Sequence[Extent]
    last: Extent | None = None
    merges: Sequence[Mapping[str, Any]] = ()
    incomplete: Sequence[str] = ()

    def to_bytes(self) -> bytes:
        """Return what from_bytes() takes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "ShownChange":
        """Return the change that a commit holds."""
        fields = json.loads(content)
        last = fields["last"]
        return cls(
            [Extent(**extent) for extent in fields["extents"]],
            None if last is None else Extent(**last),
            fields["merges"],
            fields["incomplete"],
        )


class ShownRows(ABC):
    """Shows epochs in tables of a dataset; see Shown.

    Args:
        dataset: the tables'.
        place: where the epochs are staged, and their log is.
    """

    def __init__(self, dataset: Dataset, place: EpochPlace) -> None:
        self._dataset = dataset
        self._place = place
        self._chunks = place.folder(_CHUNKS)

    @abstractmethod
    def gather(
        self, owner: str, kind: str, written: Sequence[WrittenFile], name: str, form: Form
    ) -> list[CommittedFile]:
        """Append an epoch's rows to streams; see Shown."""

    @abstractmethod
    def first_after(self, name: str | None) -> str | None:
        """Return the first epoch after another one; see Shown."""

    @abstractmethod
    def _has_rows(self, table: str, name: str) -> bool:
        """Return whether rows of an epoch that were appended to a table are shown."""

    @abstractmethod
    def _finish(self, change: ShownChange, name: str) -> None:
        """Do what comes after the rows are shown, unless it was done."""

    def give_name(self, file: CommittedFile) -> None:
        """Show the rows of a commit; see Shown.

        Raises:
            BigQueryError: the stream is gone, and its rows were never shown.
        """
        is_chunk = parse_epoch_name(file.name) is None
        if is_chunk and self.has(file.name):
            return
        change = ShownChange.from_bytes(file.content or b"")
        if len(change.extents) > 1:
            with ThreadPoolExecutor(_FLUSHES_AT_ONCE) as pool:
                shown = list(pool.map(lambda part: self._flush(part, file.name), change.extents))
        else:
            shown = [self._flush(part, file.name) for part in change.extents]
        last = change.last
        if not all(shown) or (last is not None and not self._flush(last, file.name)):
            pairs = zip(change.extents, shown, strict=True)
            raise self._lost(file.name, {part.table for part, is_shown in pairs if is_shown})
        self._finish(change, file.name)
        if is_chunk:
            self._chunks.create(file.name, "")

    def _flush(self, extent: Extent, name: str) -> bool:
        """Show rows; return False if they were never shown, and can't be any more."""
        try:
            self._dataset.stream(extent.table).flush(extent)
        except StreamGoneError:
            return self._has_rows(extent.table, name)
        return True

    def _lost(self, name: str, shown: Collection[str]) -> BigQueryError:
        """Return the error of an epoch of which rows are gone, those in some tables not."""
        remedy = f"Remove the last file of {self._place.path}/_commits"
        time = parse_epoch_name(name)
        # Nobody reads staged rows but those who know their names.
        tables = sorted(table for table in shown if not table.startswith("_"))
        if time is not None and tables:
            at = datetime_to_rfc3339(time)
            remedy += ", and run in BigQuery: " + "; ".join(
                f"DELETE FROM `{self._dataset.id}.{table}` WHERE low_watermark = TIMESTAMP '{at}'"
                for table in tables
            )
        return BigQueryError(
            f"{self._dataset.id}: a stream with rows of {name} is gone, as BigQuery removes streams"
            " that nobody uses for days.",
            f"{remedy}; then they are read again",
        )

    def has(self, name: str) -> bool:
        """Return whether a chunk of a scan is shown; see Shown."""
        return self._chunks.read(name) is not None
