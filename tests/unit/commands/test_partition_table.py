"""The table of partitions on a terminal: of a lineage 80 columns, of Bigtable's with whole keys."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.commands.options import PartitionFormat
from slackwater.commands.partition_lines import partition_lines, partition_table
from slackwater.config.load import load_settings
from slackwater.errors import SettingsError
from slackwater.reader.bigtable.positions import Position
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.scheduler.bigtable.planner import task_positions
from slackwater.state.positions import set_positions
from slackwater.state.store import Store
from tests.unit.config.test_settings import MINIMAL

FIRST: dict[str, Any] = {
    "token": "first-partition-of-all",
    "state": "finished",
    "start_timestamp": "2026-11-24T23:59:58.123456Z",
    "end_timestamp": "2026-11-25T00:00:00.123456500Z",
    "parents": ["one-parent-of-two", "another-parent"],
    "stalls": 0,
}
SECOND: dict[str, Any] = FIRST | {
    "token": "second-partition-of-all",
    "start_timestamp": "2026-11-25T00:00:00.123456Z",
    "end_timestamp": "2026-11-25T00:00:02.123456Z",
    "parents": ["first-partition-of-all"],
}
THIRD: dict[str, Any] = SECOND | {"end_timestamp": None, "state": "running"}


def test_times_and_tokens_are_not_cut_at_80_columns() -> None:
    lines = list(partition_table([FIRST, SECOND, THIRD]))
    assert lines == [
        "token         state     start (UTC)          end                  parents",
        "first-partit  finished  2026-11-24 23:59:58  2026-11-25 00:00:00  one-parent-o",
        "                                                                  another-pare",
        "second-parti  finished  2026-11-25 00:00:00  00:00:02             first-partit",
        "second-parti  running   2026-11-25 00:00:00  -                    first-partit",
    ]
    assert max(map(len, lines)) <= 80


def test_stalls_have_a_column_if_there_are_any() -> None:
    header, first, second = partition_table([SECOND | {"stalls": 3}, THIRD])
    assert header.endswith("parents       stalls")
    assert first.endswith("first-partit  3")
    assert second.endswith("first-partit")
    assert len(header) <= 80


def test_without_partitions_there_is_a_header() -> None:
    assert list(partition_table([])) == ["token  state  start (UTC)  end  parents"]


def test_partitions_of_bigtable_have_positions_and_say_what_they_wait_for(
    orders_store: Store, tmp_path: Path
) -> None:
    left, right = RowRange(b"", b"b"), RowRange(b"user\x00", b"")
    middle = RowRange(left.end, right.start)
    positions = [
        Position(right, right, "r", 1_000_000, 500_000),
        Position(left, left, None, 2_000_000),
        # The other part of the new partition was not closed yet.
        Position(middle, RowRange(b"b", b""), "m", 3_000_000),
    ]
    set_positions(orders_store, "orders", task_positions(positions), 1, generation=None)
    file = tmp_path / "slackwater.yaml"
    file.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": orders_store.url}}))
    settings = load_settings(file, {})
    assert list(partition_lines(settings, PartitionFormat.TABLE)) == [
        "position (UTC)       replication          token  keys           waits for the rest of",
        "1970-01-01 00:00:02  -                    -      [, b)          -",
        "1970-01-01 00:00:03  -                    yes    [b, user\\x00)  [b, )",
        "1970-01-01 00:00:01  1970-01-01 00:00:00  yes    [user\\x00, )   -",
    ]
    rows = json.loads("".join(partition_lines(settings, PartitionFormat.JSON)))
    assert rows[2] == {
        "keys": "[user\\x00, )",
        "has_token": True,
        "position_at": "1970-01-01T00:00:01.000000Z",
        "replication_stands_at": "1970-01-01T00:00:00.500000Z",
        "waits_for_the_rest_of": None,
    }
    with pytest.raises(SettingsError, match="no parents on record") as refused:
        list(partition_lines(settings, PartitionFormat.DOT))
    assert "--format table" in refused.value.hint
