"""A merge into a Delta table finds the rows that are there, whatever statistics say of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges import delta_merge
from slackwater.spark_sink.tables.row_merges.delta_merge import forget_rows, merge_rows
from slackwater.spark_sink.tables.row_merges.row_changes import RowChange
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_format import MergeId, OtherRows

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
VALUE = Column("V", "INT64", False)
PRICE = Column("Price", "NUMERIC", True)
ID = Column("Id", "INT64", True)
MOMENT = Column("Moment", "TIMESTAMP", True)
# As floating-point numbers they would be less, or more.
PRICES = (
    "1234567.123456789",
    "-1234567.123456789",
    "12345678901234.123456789",
    "-12345678901234.123456789",
    "99999999999999999999999999999.999999999",
    "0.000000001",
)


def microseconds(number: int) -> str:
    return f"2026-01-31T09:00:00.{number:06d}Z"


class Mirror:
    """A mirror on a disk, and the epochs that are merged into it."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self.path, self._columns = str(path), mirror_columns(columns)
        empty = latest_rows({}, self._columns)
        write_deltalake(self.path, empty.select([column.name for column in self._columns]))
        self.table, self._epoch = DirectTable(self.path), 0

    def merge(self, *keys: dict[str, Any], value: int | None) -> None:
        """Merge an epoch that sets rows to a value, or deletes them."""
        self._epoch += 1
        new = {} if value is None else {"V": str(value)}
        at = START + timedelta(seconds=self._epoch)
        changes = {json.dumps(key): RowChange(value is None, True, new, at) for key in keys}
        rows = latest_rows(changes, self._columns)
        merge_rows(
            self.table, rows, self._columns, MergeId("orders", at), OtherRows(are_kept=False)
        )

    def values(self) -> list[int]:
        return sorted(DeltaTable(self.path).to_pyarrow_table()["V"].to_pylist())

    def statistics(self) -> list[str]:
        """Return those of the files that it has."""
        log = sorted(Path(self.path, "_delta_log").glob("*.json"))
        actions = [json.loads(line) for commit in log for line in commit.read_text().splitlines()]
        return [action["add"]["stats"] for action in actions if "add" in action]


@pytest.mark.parametrize("price", PRICES)
def test_the_row_of_a_numeric_key_is_changed_and_deleted(tmp_path: Path, price: str) -> None:
    mirror = Mirror(tmp_path, [PRICE, VALUE])
    for value in (1, 2, 3):
        mirror.merge({"Price": price}, value=value)
        assert mirror.values() == [value]
    mirror.merge({"Price": price}, value=None)
    assert mirror.values() == []
    assert mirror.statistics()
    assert not any("Price" in text for text in mirror.statistics())


def test_it_is_found_where_an_earlier_version_has_written_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(tmp_path, [ID, PRICE, VALUE])
    keys = [{"Id": str(number), "Price": price} for number, price in enumerate(PRICES)]
    with monkeypatch.context() as patch:
        patch.setattr(delta_merge, "inexact_statistics", lambda _: [])
        for key in keys:
            mirror.merge(key, value=1)
    assert any("Price" in text for text in mirror.statistics())
    mirror.merge(*keys, value=2)
    assert mirror.values() == [2] * len(keys)
    mirror.merge(*keys[1:], value=None)
    assert mirror.values() == [2]


def of_three_moments(path: Path) -> tuple[Mirror, list[dict[str, Any]]]:
    """Return a mirror of three files, and keys: of its last row, and of a new one after it."""
    mirror = Mirror(path, [MOMENT, VALUE])
    for number in (100_999, 110_000, 123_456):
        mirror.merge({"Moment": microseconds(number)}, value=1)
    return mirror, [{"Moment": microseconds(number)} for number in (123_456, 200_000)]


def test_a_compaction_beside_a_merge_doubles_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs cuts the bounds of times to milliseconds, and sees no conflict after that."""
    mirror, keys = of_three_moments(tmp_path)
    files_of = delta_merge._files_of

    def compacted_meanwhile(table: DeltaTable) -> tuple[int, str | None]:
        monkeypatch.undo()
        DeltaTable(mirror.path).optimize.compact()
        return files_of(table)

    monkeypatch.setattr(delta_merge, "_files_of", compacted_meanwhile)
    with pytest.raises(PublishError, match="another process committed"):
        mirror.merge(*keys, value=2)
    assert mirror.values() == [1, 1, 1]
    mirror.merge(*keys, value=2)
    assert mirror.values() == [1, 1, 2, 2]


def test_columns_that_an_epoch_does_not_know_get_no_inexact_bounds_either(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, [ID, VALUE, PRICE])
    mirror.merge({"Id": "1", "Price": PRICES[0]}, value=1)
    gone = OtherRows(are_kept=False, cleared_at=None)
    absent = replace(VALUE, absent_at=START)
    forget_rows(mirror.table, [absent], MergeId("orders", START + timedelta(days=1)), gone)
    assert DeltaTable(mirror.path).to_pyarrow_table()["V"].to_pylist() == [None]
    assert not any("Price" in text for text in mirror.statistics())
