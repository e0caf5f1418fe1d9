"""Typed changelogs in a database, which readers see by whole epochs."""

import abc
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import datetime_to_ns
from tests.outputs.output import Output, Place
from tests.support import mixed_load
from tests.support.mirror_looks import Looker, Seen
from tests.support.truths import truth_of
from tests.support.typed_changelogs import change_in, expected_changes

# Of the demo.
TABLES: Final = ("Customers", "Orders", "Payments")


# A low watermark in nanoseconds, and the rows of all mirrors at it.
AtOneTime = tuple[int, dict[str, list[dict[str, Any]]]]


class LookerAtOnce(Looker):
    """Compares mirrors with their tables, all as a reader sees them at one moment."""

    def __init__(self, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(Path(), stream, dialect)
        self._at = 0

    @abc.abstractmethod
    def _at_one_time(self) -> AtOneTime | None:
        """Return all mirrors, if they have advanced."""

    def if_later(
        self, at: datetime | None, rows: Callable[[str], list[dict[str, Any]]]
    ) -> AtOneTime | None:
        """Return the rows of all mirrors, if their low watermark is later than the last one."""
        if at is None or datetime_to_ns(at) <= self._at:
            return None
        return datetime_to_ns(at), {name: rows(name) for name in mixed_load.TABLES}

    def look_now(self) -> set[str]:
        """Compare all mirrors, if they have advanced."""
        seen = self._at_one_time()
        if seen is None:
            return set()
        self._at, rows_of = seen
        for name, rows in rows_of.items():
            self._require_equal(name, Seen(rows, self._at))
        return set(rows_of)


class DatabaseChangelogs(Output):
    """Typed changelogs in a database."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # By table and epoch, the rows that a reader saw.
        self._seen: dict[tuple[str, Any], int] = {}

    @abc.abstractmethod
    def _counts(self) -> dict[tuple[str, Any], int]:
        """Return the number of rows that readers see by table and epoch."""

    @abc.abstractmethod
    def _rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""

    def look(self, stream: ChangeStream) -> None:
        """Require that there are whole epochs, which stay as they are."""
        del stream
        for epoch, rows in self._counts().items():
            before = self._seen.setdefault(epoch, rows)
            assert before == rows, f"{epoch}: {before} rows became {rows}"

    def require_equal(self, stream: ChangeStream, start_ns: int, end_ns: int) -> int:
        """Compare the changes with the truth."""
        self.look(stream)
        changes = Counter(change_in(table, row) for table in TABLES for row in self._rows(table))
        truth = truth_of(stream, start_ns, end_ns, self._dialect)
        expected = expected_changes(truth.records)
        assert changes == expected, (changes - expected, expected - changes)
        seen = {table for table, _ in self._seen}
        assert seen == set(TABLES), "nobody saw an epoch"
        return expected.total()
