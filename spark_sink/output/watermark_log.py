"""The watermark log: files beside the output with the low watermarks that it has reached.

When a line has a low_watermark at or after a time, everything committed up to that time is in the
output. Each epoch adds a file with one line, and files become fewer and larger as they grow old.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.small_files import SmallFiles
from slackwater.spark_sink.output.watermark_lines import (
    FILES_IN_ONE,
    LEVELS,
    LogFile,
    LogLine,
    covers,
    file_text,
    files_to_merge,
    merge_lines,
    parse_file_name,
    parse_lines,
)
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace

FOLDER: Final = "_watermarks"
_LISTINGS_MAX: Final = 10
_log = logging.getLogger(__name__)


def output_position(
    logged: LogLine | None, committed: datetime | None, *, is_one_commit: bool
) -> OutputPosition:
    """Return the position of an output, from its watermark log and its commits.

    A process that dies between an epoch's last commit and its line leaves commits later than the
    log.

    Args:
        logged: the log's last line; None without one.
        committed: the low watermark of the latest epoch that is visible at least in part.
        is_one_commit: an epoch becomes visible by one atomic commit, so that all of it is visible
            or nothing.
    """
    complete = None if logged is None else logged.low_watermark
    begun = committed
    if is_one_commit and committed is not None:
        complete = committed if complete is None else max(complete, committed)
    if begun is not None and complete is not None and begun <= complete:
        begun = None
    return OutputPosition(complete, begun, None if logged is None else logged.pipeline)


class WatermarkLog:
    """The watermark log of one output.

    Args:
        place: the output's.
        pipeline: the pipeline's name.

    Attributes:
        path: the output's.
    """

    def __init__(self, place: EpochPlace, pipeline: str) -> None:
        self.path = place.path
        self.pipeline = pipeline
        self._files = place.folder(FOLDER)
        self._writer: LogWriter | None = None

    def add_scan(self, records: int, low_watermark: datetime) -> None:
        """Add the line of an initial scan, which has no epoch number."""
        self.add_line(self._line(None, records, 0, low_watermark))

    def add(
        self,
        epoch_id: int,
        summary: EpochSummary,
        low_watermark: datetime,
        incomplete: Iterable[str] = (),
    ) -> None:
        """Add the line of an epoch; a replay leaves it as it is."""
        line = self.line(epoch_id, summary, low_watermark)
        if names := sorted(incomplete):
            line = line.with_field("incomplete", names)
        self.add_line(line)

    def line(self, epoch_id: int, summary: EpochSummary, low_watermark: datetime) -> LogLine:
        """Return the line of an epoch that becomes visible now."""
        return self._line(epoch_id, summary.written, summary.transactions, low_watermark)

    def _line(
        self, epoch_id: int | None, records: int, transactions: int, low_watermark: datetime
    ) -> LogLine:
        fields = {
            "pipeline": self.pipeline,
            "epoch": epoch_id,
            "low_watermark": datetime_to_rfc3339(low_watermark),
            "records": records,
            "transactions": transactions,
            "committed_at": datetime_to_rfc3339(datetime.now(UTC)),
        }
        return LogLine(low_watermark.astimezone(UTC), json.dumps(fields))

    def add_line(self, line: LogLine) -> None:
        """Add a line, unless the log has one of this low watermark."""
        if self._writer is None:
            self._writer = LogWriter(self._files)
        self._writer.add(line)
        try:
            self._writer.merge()
        except (OSError, PublishError) as error:
            # The epoch's line is there; the files are merged with the next ones.
            _log.warning("%s/%s: its files were not merged: %s", self.path, FOLDER, error)
            self._writer = None

    def last(self, until: datetime | None = None) -> LogLine | None:
        """Return the latest line of all, or at or before a time; None without one."""
        return latest_line(self._files, until)

    def last_low_watermark(self) -> datetime | None:
        """Return the latest line's low watermark; None without a line."""
        line = self.last()
        return None if line is None else line.low_watermark

    def has_records_after(self, time: datetime) -> bool:
        """Return whether there is a line of an epoch with records that is later than a time."""
        later = (file for file in _listed(self._files) if file.last > time)
        texts = self._files.read_all([file.name for file in later])
        lines = (line for text in texts for line in parse_lines(text or ""))
        return any(line.low_watermark > time and line.is_epoch_with_records for line in lines)

    def first(self) -> LogLine | None:
        """Return the earliest line; None without one."""
        return earliest_line(self._files)


class LoggedScans:
    """A sink whose initial scan ends with a line of its watermark log.

    Attributes:
        _watermarks: the log.
    """

    _watermarks: WatermarkLog

    def end_scan(
        self,
        spark: SparkSession,  # noqa: ARG002
        records: int,
        low_watermark: datetime,
    ) -> None:
        """Write the scan's low watermark; see Sink."""
        self._watermarks.add_scan(records, low_watermark)


def latest_line(files: SmallFiles, until: datetime | None = None) -> LogLine | None:
    """Return the line with the highest low watermark; None without one.

    Of a month of files all are listed, and one or two are read.

    Args:
        files: the log's folder.
        until: the line's low watermark is at most this.
    """
    latest: LogLine | None = None
    for _ in range(_LISTINGS_MAX):
        is_stale = False
        for file in sorted(_listed(files), key=lambda file: file.last, reverse=True):
            if until is not None and file.first > until:
                continue
            if latest is not None and latest.low_watermark >= file.last:
                return latest
            text = files.read(file.name)
            # Its owner may have removed it since; then the lines are in a file that is not listed.
            is_stale |= text is None
            lines = [
                line
                for line in parse_lines(text or "")
                if until is None or line.low_watermark <= until
            ]
            latest = max([*lines, latest] if latest else lines, key=_time_of, default=None)
        if not is_stale:
            break
    return latest


def earliest_line(files: SmallFiles) -> LogLine | None:
    """Return the line with the lowest low watermark; None without one."""
    earliest: LogLine | None = None
    for file in sorted(_listed(files)):
        if earliest is not None and earliest.low_watermark <= file.first:
            break
        lines = parse_lines(files.read(file.name) or "")
        earliest = min([*lines, earliest] if earliest else lines, key=_time_of, default=None)
    return earliest


def _time_of(line: LogLine) -> datetime:
    return line.low_watermark


class LogWriter:
    """A writer that adds lines and merges files, as the owner of the log or a former one.

    Merged files are removed when the next ones of their level are merged, so that a reader who has
    listed them has time to open them.

    Args:
        files: the log's folder.
        files_in_one: how many files become one.
    """

    def __init__(self, files: SmallFiles, files_in_one: int = FILES_IN_ONE) -> None:
        self._files = files
        self._files_in_one = files_in_one
        # By level: the files that are to be merged, and those that were.
        self._separate: list[dict[LogFile, None]] = []
        self._merged: list[dict[LogFile, None]] = []

    def add(self, line: LogLine) -> None:
        """Add an epoch's line, unless it is there."""
        if not self._separate:
            self._load()
        file = self._create(LogFile(line.low_watermark, line.low_watermark), [line])
        self._note(file, 0)

    def merge(self) -> None:
        """Make one file of many where there are enough, and remove those merged before."""
        for level, separate in enumerate(self._separate[:-1]):
            oldest = files_to_merge(separate, self._files_in_one)
            if not oldest:
                return
            lines = self._read(oldest)
            if lines is None:
                # Another owner is merging them: list the files again.
                self._separate = []
                return
            merged = merge_lines(lines)
            if merged:
                first, last = merged[0].low_watermark, merged[-1].low_watermark
                file = LogFile(min(first, oldest[0].first), last, level + 1)
                self._note(self._create(file, merged), level + 1)
            merged_before = [file.name for file in self._merged[level]]
            self._files.remove(merged_before, in_any_order=True)
            self._merged[level] = dict.fromkeys(oldest)
            for file in oldest:
                del separate[file]

    def _create(self, file: LogFile, lines: Sequence[LogLine]) -> LogFile:
        """Create a file, or return the one that has the lines."""
        for attempt in count():
            candidate = replace(file, attempt=attempt)
            # Those that it replaces are removed.
            is_durable = file.level != 0
            if self._files.create(candidate.name, file_text(lines), is_durable=is_durable):
                return candidate
            if covers(parse_lines(self._files.read(candidate.name) or ""), lines):
                return candidate
        raise AssertionError  # pragma: no cover

    def _note(self, file: LogFile, level: int) -> None:
        if file not in self._separate[level] and file not in self._merged[level]:
            self._separate[level][file] = None

    def _read(self, files: Iterable[LogFile]) -> list[LogLine] | None:
        """Return the lines of files; None if one does not exist."""
        lines: list[LogLine] = []
        for text in self._files.read_all([file.name for file in files]):
            if text is None:
                return None
            lines += parse_lines(text)
        return lines

    def _load(self) -> None:
        """List the files, and tell which of them were merged."""
        listed = list(_listed(self._files))
        self._separate = [
            dict.fromkeys(file for file in listed if file.level == n) for n in range(LEVELS)
        ]
        self._merged = [{} for _ in range(LEVELS)]
        for level in range(LEVELS - 1):
            for larger in self._separate[level + 1]:
                candidates = [file for file in self._separate[level] if larger.spans(file)]
                if not candidates:
                    continue
                stored = parse_lines(self._files.read(larger.name) or "")
                for file in candidates:
                    if self._is_in(file, stored):
                        del self._separate[level][file]
                        self._merged[level][file] = None

    def _is_in(self, file: LogFile, stored: Sequence[LogLine]) -> bool:
        if file.level == 0:
            # Without reading it. A line that merge_lines() left out is merged again.
            return any(line.low_watermark == file.first for line in stored)
        lines = self._read([file])
        return lines is not None and covers(stored, lines)


def _listed(files: SmallFiles) -> Iterator[LogFile]:
    """Yield the files of a log's folder."""
    return (file for file in map(parse_file_name, files.names()) if file is not None)
