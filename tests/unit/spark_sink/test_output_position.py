"""How far an output is written, from the last line of its watermark log and its commits."""

from datetime import UTC, datetime, timedelta

import pytest

from slackwater.spark_sink.output.watermark_lines import LogLine
from slackwater.spark_sink.output.watermark_log import output_position
from slackwater.spark_sink.sink import OutputPosition

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
LATER = AT + timedelta(microseconds=1)
LINE = LogLine(AT, '{"pipeline": "orders"}')


@pytest.mark.parametrize(
    ("logged", "committed", "one_commit", "several_commits"),
    [
        (None, None, (None, None, None), (None, None, None)),
        (None, AT, (AT, None, None), (None, AT, None)),
        (LINE, None, (AT, None, "orders"), (AT, None, "orders")),
        (LINE, AT, (AT, None, "orders"), (AT, None, "orders")),
        (LINE, LATER, (LATER, None, "orders"), (AT, LATER, "orders")),
        (LogLine(LATER, LINE.text), AT, (LATER, None, "orders"), (LATER, None, "orders")),
    ],
)
def test_a_later_commit_is_complete_only_if_it_is_the_epoch_s_only_one(
    logged: LogLine | None,
    committed: datetime | None,
    one_commit: tuple[datetime | None, datetime | None, str | None],
    several_commits: tuple[datetime | None, datetime | None, str | None],
) -> None:
    for is_one_commit, expected in ((True, one_commit), (False, several_commits)):
        position = output_position(logged, committed, is_one_commit=is_one_commit)
        assert position == OutputPosition(*expected)
