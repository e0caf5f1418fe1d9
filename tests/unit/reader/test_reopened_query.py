"""A query that is opened again: which of its calls is given up."""

import time
from typing import cast

from slackwater.reader.query.reopened_query import ReopenedQuery
from slackwater.reader.transport.stream_call import Call


class SilentCall:
    """A call that has been silent for an hour."""

    def __init__(self) -> None:
        self.waiting_since_s = time.monotonic() - 3_600
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def close(self) -> None:
        """It holds nothing."""


def test_a_silent_call_is_given_up_though_the_one_before_ended_when_it_was_found_silent() -> None:
    query = ReopenedQuery("p", 1_000)
    for _ in range(2):
        call = SilentCall()
        with query._running(cast("Call", call)):
            query.cancel_if_stalled(time.monotonic())
            assert call.is_cancelled
