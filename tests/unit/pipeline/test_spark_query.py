"""The start of a query ends when its source is there, so that not all start at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slackwater.pipeline.spark import query as query_module
from slackwater.pipeline.spark.query import QuerySettings, start_query

INITIALIZING = ("Initializing StreamExecution", "Initializing sources")


class FakeSpark:
    """Spark's session, reader, frame, writer and query in one; it only shows a query's status."""

    def __init__(self, messages: tuple[str, ...], *, is_active: bool = True) -> None:
        self._messages = list(messages)
        self._is_active = is_active
        self.asked = 0

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._is_active

    @property
    def status(self) -> dict[str, Any]:
        self.asked += 1
        return {"message": self._messages.pop(0) if len(self._messages) > 1 else self._messages[0]}

    @property
    def readStream(self) -> FakeSpark:  # noqa: N802
        return self

    conf = writeStream = readStream  # noqa: N815

    def __getattr__(self, name: str) -> Callable[..., FakeSpark]:
        return lambda *_, **__: self


def start(spark: FakeSpark) -> None:
    writer: Any = FakeSpark(("",))
    writer.write = None
    session: Any = spark
    start_query(session, QuerySettings("orders", "source", {}, "checkpoint", 0), writer)


def test_a_start_ends_when_the_source_has_connected() -> None:
    spark = FakeSpark((*INITIALIZING, "Getting offsets from SpannerChanges", "Processing"))
    start(spark)
    assert spark.asked == len(INITIALIZING) + 1


def test_a_query_that_has_failed_is_not_waited_for() -> None:
    spark = FakeSpark(INITIALIZING, is_active=False)
    start(spark)
    assert spark.asked == 0


def test_a_source_that_does_not_connect_does_not_keep_others_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_module, "_CONNECTED_S_MAX", 0.0)
    start(FakeSpark(INITIALIZING[:1]))
