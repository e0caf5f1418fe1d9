"""Typed changelogs in a database, which readers see by whole epochs."""

from __future__ import annotations

import abc
from collections import Counter
from typing import Any, Final

from slackwater.reader.change_stream import ChangeStream
from tests.outputs.output import Output, Place
from tests.support.truths import truth_of
from tests.support.typed_changelogs import change_in, expected_changes

# Of the demo.
TABLES: Final = ("Customers", "Orders", "Payments")


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
