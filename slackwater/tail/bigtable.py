"""The epochs of a table of Bigtable's for `slackwater tail`, and the lines of its changes."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from slackwater.reader.bigtable.changes import SCHEMA
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.bigtable.planner import TabletPlanner, TabletTask
from slackwater.scheduler.bigtable.tablet_task import read_tablets
from slackwater.scheduler.options import SourceOptions
from slackwater.spark_sink.envelopes.envelope import Message
from slackwater.state.store import Store
from slackwater.tail.line_format import LineFormat, LineFormatter
from slackwater.tail.tail import TailedEpochs
from slackwater.timestamp import datetime_to_rfc3339


@contextmanager
def epochs_of(
    options: SourceOptions[BigtableTable], store: Store
) -> Iterator[TailedEpochs[TabletTask]]:
    """Yield the epochs of a table, connected.

    Raises:
        ReaderError: it does not exist, has no change stream, or can't be reached.
    """
    with closing(BigtableService(options.change_stream)) as service:
        source = BigtableSource(service)
        source.check()
        read = partial(
            read_tablets,
            store=store,
            service=service,
            heartbeat_ms=options.heartbeat_ms,
            options=options.read,
        )
        # The changes of a row and cluster are in commit order already, and the sort keeps that.
        yield TailedEpochs(
            TabletPlanner(options, source, store),
            read,
            SCHEMA,
            [("commit_timestamp", "ascending")],
            is_cut_by_time=False,
        )


@dataclass(frozen=True, slots=True)
class TableLines(LineFormatter):
    """The lines of a table's changes: for people the entries, in JSON and CSV all columns.

    Attributes:
        table: the table's name.
    """

    kind_column: ClassVar = "type"

    table: str

    def messages(self, row: dict[str, Any]) -> Iterable[Message]:
        """Return the message of a change; bytes are in base64, for people as they can be read."""
        is_text = self.line_format is LineFormat.TEXT
        shown = _readable if is_text else _exact
        value: Any = [_present(entry) for entry in row["entries"]] if is_text else row
        key, body = (
            json.dumps(part, default=shown, ensure_ascii=False, separators=(",", ":"))
            for part in (row["row_key"], value)
        )
        return [Message(self.table, key, body)]


def _present(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


def _readable(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)[2:-1]


def _exact(value: Any) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else datetime_to_rfc3339(value)
