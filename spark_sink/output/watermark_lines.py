"""The files of a watermark log: their names and lines, and the merging into larger files.

A file never changes, and a line is in a larger file before its own is removed. So a process that
was frozen at any step and goes on when another one owns the pipeline can only repeat a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final

# The number of files of a level that become one of the next.
FILES_IN_ONE: Final = 100
# Files of single epochs, of FILES_IN_ONE files, and of FILES_IN_ONE of those.
LEVELS: Final = 3
_TIME: Final = "%Y%m%dT%H%M%S.%fZ"
_NAME: Final = re.compile(
    r"(\d{8}T\d{6}\.\d{6}Z)(?:-(\d{8}T\d{6}\.\d{6}Z)\.([12]))?(?:~(\d+))?\.json"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log.

    Attributes:
        low_watermark: in whole microseconds, UTC.
        text: JSON.
    """

    low_watermark: datetime
    text: str

    @property
    def fields(self) -> dict[str, Any]:
        """The values by their names."""
        fields: dict[str, Any] = json.loads(self.text)
        return fields

    def with_field(self, name: str, value: Any) -> LogLine:
        """Return the line with one value more."""
        return replace(self, text=json.dumps({**self.fields, name: value}))

    @property
    def pipeline(self) -> str:
        """The pipeline that wrote it."""
        return str(self.fields["pipeline"])

    @property
    def incomplete(self) -> frozenset[str]:
        """The tables that lack rows, although the others are complete."""
        return frozenset(self.fields.get("incomplete", ()))

    @property
    def is_idle(self) -> bool:
        """Whether it is the line of an epoch without records."""
        return self.fields["epoch"] is not None and not self.fields["records"]

    @property
    def is_epoch_with_records(self) -> bool:
        """Whether it is the line of an epoch with records; that of a scan is not."""
        return self.fields["epoch"] is not None and bool(self.fields["records"])


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A file of the log; they sort by the time that they begin with.

    Attributes:
        first, last: the low watermarks of its first line and of its last one.
        level: 0 for an epoch's file, 1 for FILES_IN_ONE of those, 2 for FILES_IN_ONE of level 1.
        attempt: counts from 0 the names of files that differ in nothing else. There is a second one
            only if the first was left without its lines by a power cut or a full disk.
    """

    first: datetime
    last: datetime
    level: int = 0
    attempt: int = 0

    @property
    def name(self) -> str:
        """The file's name."""
        rest = f"-{self.last:{_TIME}}.{self.level}" if self.level else ""
        return f"{self.first:{_TIME}}{rest}{f'~{self.attempt}' if self.attempt else ''}.json"

    def spans(self, other: LogFile) -> bool:
        """Return whether this file's lines may be those of the other, which has a lower level."""
        return self.first <= other.first and other.last <= self.last


def parse_file_name(name: str) -> LogFile | None:
    """Return the file of a name; None if the log has no such files."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last, level, attempt = match.groups()
    first_at, last_at = map(datetime.fromisoformat, (first, last or first))
    return LogFile(first_at, last_at, int(level or 0), int(attempt or 0))


def parse_lines(text: str) -> list[LogLine]:
    """Parse the lines of a file, without one that a crash has cut off."""
    texts = [line for line in text.splitlines() if line.endswith("}")]
    return [LogLine(datetime.fromisoformat(json.loads(t)["low_watermark"]), t) for t in texts]


def file_text(lines: Iterable[LogLine]) -> str:
    """Return the text of a file with these lines."""
    return "".join(f"{line.text}\n" for line in lines)


def merge_lines(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return the lines of several files in order, each once, of a run of idle epochs the last."""
    by_identity: dict[tuple[Any, ...], LogLine] = {}
    for line in lines:
        identity = {k: v for k, v in line.fields.items() if k != "committed_at"}
        by_identity.setdefault((line.low_watermark, *map(str, identity.values())), line)
    in_order = [by_identity[key] for key in sorted(by_identity)]
    return [
        line
        for line, later in zip_longest(in_order, in_order[1:])
        if later is None or not (line.is_idle and later.is_idle) or line.pipeline != later.pipeline
    ]


def covers(stored: Sequence[LogLine], lines: Iterable[LogLine]) -> bool:
    """Return whether stored lines cover other lines, possibly after merge_lines()."""
    stored_at = {line.low_watermark for line in stored}
    latest = max(stored_at, default=None)
    return all(
        line.low_watermark in stored_at
        or (line.is_idle and latest is not None and latest > line.low_watermark)
        for line in lines
    )


def files_to_merge(files: Collection[LogFile], number: int = FILES_IN_ONE) -> list[LogFile]:
    """Return the oldest files of one level, if there are enough to become one."""
    return sorted(files)[:number] if len(files) >= number else []
