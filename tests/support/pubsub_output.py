"""The sink pubsub without a pipeline around it: its epochs, and their records."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.message_sink import MessageSink
from slackwater.spark_sink.sinks.pubsub import PubSubSettings
from tests.support.epoch_rows import Mods, frame, record
from tests.support.pubsub import PROJECT, PubSubEmulator

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
COLUMNS = {"Id": "INT64", "Note": "STRING"}


class Output:
    """The output of one pipeline; each sink() is the sink of another process of it."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session, self.folder = session, folder

    def sink(self, **settings: Any) -> MessageSink:
        values = {"checkpoint": str(self.folder / "checkpoint"), "project": PROJECT, **settings}
        origin = Origin("orders", "p", "i", "d", "Everything")
        return PubSubSettings.model_validate(values).make_sink(origin, RecordFilter())

    def write(self, sink: MessageSink, epoch_id: int, *records: Any) -> None:
        """Write an epoch that ends so many seconds after AT."""
        summary = sink.stage(frame(self.session, records), epoch_id)
        sink.publish(self.session, epoch_id, summary, AT + timedelta(seconds=epoch_id))

    def dead_letters(self) -> list[dict[str, Any]]:
        files = self.folder.glob("checkpoint-staging/_dead_letters/*/*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def output(session: SparkSession, pubsub: PubSubEmulator, tmp_path: Path) -> Output:
    del pubsub
    return Output(session, tmp_path)


def change(
    key: int,
    *,
    at: int,
    table: str = "Orders",
    note: str = "",
    kind: str = "INSERT",
    capture: str = "NEW_ROW",
    columns: Mapping[str, str] = COLUMNS,
    **values: Any,
) -> Any:
    """Return the record of a change.

    Args:
        key: of the row.
        at: the commit timestamp, in microseconds after AT.
        table, kind, capture: as in the record.
        note: the value of the column Note.
        columns: type codes by name.
        values: of further columns.
    """
    new = {} if kind == "DELETE" else {"Note": note, **values}
    mods: Mods = [({"Id": str(key)}, new, {})]
    return record(kind, mods, columns, at=at, table=table, capture=capture)
