"""The version of a mirror at a low watermark, by the commits of its history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.timestamp import datetime_to_rfc3339, us_to_datetime

# The low watermark of a commit before the pipeline's first merge.
BEFORE_ALL_US: Final = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table.

    Attributes:
        version: a Delta version, or the id of an Iceberg snapshot.
        low_watermark_us: the low watermark of the epoch that the pipeline merged with it, in
            microseconds. None for any other commit: an initial scan's, a compaction, a published
            low watermark, added columns, and those of other writers.
        is_rewrite: the table is written again because a column's type has changed. It belongs to
            the epoch that is merged next.
        has_rows: it adds files with rows.
    """

    version: int
    low_watermark_us: int | None = None
    is_rewrite: bool = False
    has_rows: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a table from which it can still be read, the oldest first.

    Attributes:
        commits: each follows the one before it.
        is_whole: the first is the table's first; otherwise earlier ones were removed.
    """

    commits: Sequence[Commit]
    is_whole: bool

    @property
    def low_watermarks_us(self) -> list[int]:
        """Return those of the epochs that were merged, in microseconds, the earliest first."""
        return [c.low_watermark_us for c in self.commits if c.low_watermark_us]


def version_at(history: History, low_watermark_us: int, table: str) -> int | None:
    """Return the version with all epochs up to a low watermark, and none after it.

    It is the last one before the first merge of a later epoch. Publications do not count: a crash
    may come between a merge and its publication, and a former owner that wakes up may publish an
    earlier low watermark after a later merge.

    Args:
        history: the table's.
        low_watermark_us: that of an epoch that is complete in all tables, or of the initial scan.
        table: its name, for the error.

    Returns:
        The version; None if the table had no rows yet.

    Raises:
        AsOfTimeError: the commits of that time were removed.
    """
    commits = history.commits
    end = next(
        (place for place, commit in enumerate(commits) if _is_later(commit, low_watermark_us)),
        len(commits),
    )
    merged = [place for place in range(end) if commits[place].low_watermark_us is not None]
    if not merged and not history.is_whole:
        raise gone_error(table, low_watermark_us, next(iter(history.low_watermarks_us), None))
    rest = range(merged[-1] + 1 if merged else 0, end)
    end = next((place for place in rest if commits[place].is_rewrite), end)
    if not any(commit.has_rows for commit in commits[:end]):
        return None
    return commits[end - 1].version


def gone_error(table: str, low_watermark_us: int, first_us: int | None) -> AsOfTimeError:
    """Return the error of a table whose history does not go back to a low watermark.

    Args:
        table: its name.
        low_watermark_us: the time that was asked for.
        first_us: the earliest low watermark at which it can be read; None if it is not known.
    """
    asked = datetime_to_rfc3339(us_to_datetime(low_watermark_us))
    return AsOfTimeError(
        f"the mirror {table} can't be read at {asked} any more: its commits of that time, or their"
        " files, were removed.",
        "Its history goes back to no low watermark that is known"
        if first_us is None
        else f"Its history goes back to {datetime_to_rfc3339(us_to_datetime(first_us))}",
    )


def _is_later(commit: Commit, low_watermark_us: int) -> bool:
    return commit.low_watermark_us is not None and commit.low_watermark_us > low_watermark_us
