"""The table of partitions on a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

from slackwater.commands.partition_lines import partition_table

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
