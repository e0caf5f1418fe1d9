"""Decoding the messages of many partition queries together.

Each query receives for itself. Decoding a few thousand records by column costs a tenth of decoding
them one by one (reader.decode.googlesql_columns), so queries add their messages to one list of
pending messages. One of them decodes the whole list when it is large enough, or when it must know
what its own messages hold. A query that has received everything leaves behind what is to be done
once it is decoded. There is no timer, and no query waits for another.
"""

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.googlesql_columns import Columns, decode_columns
from slackwater.reader.decode.postgresql_columns import decode_json_columns
from slackwater.reader.decode.proto_columns import decode_proto_columns
from slackwater.reader.decode.protobuf_cursor import Flags, Ints
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.decode.result_layout import Layout, form_of
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import ChangeRecord, DataChangeRecord

# A query adds its messages in portions of about this size, so that it seldom takes the lock.
PORTION_BYTES: Final = 64 * 1024
# Pending messages are decoded at this size: some ten thousand records.
_PENDING_BYTES_MAX: Final = 8 * 1024 * 1024
# Below this, decoding by column costs more than decoding one by one.
_BY_COLUMN_BYTES_MIN: Final = 48 * 1024
# Records that were decoded one by one are delivered when there are so many of them.
_UNDELIVERED_ROWS_MAX: Final = 512


class RecordConsumer(Protocol):
    """The receiver of the records of one partition query; called by one thread at a time."""

    @property
    def token(self) -> str:
        """The token of the partition."""

    @property
    def is_done(self) -> bool:
        """True if no more records of this query are needed."""

    def take_rows(self, rows: Rows) -> Flags | None:
        """Take the next records, by column; return which are to be delivered, None for all."""

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        """Take the next records, one by one; return those to be delivered."""


# The owners of a batch's rows: pairs of a partition token and a number of rows, in order.
Owners = Sequence[tuple[str, int]]
Deliver = Callable[[pa.RecordBatch, Owners], None]


@dataclass(slots=True)
class QueryStream:
    """The messages of one query: who receives its records, and how they are decoded.

    Attributes:
        consumer: receives the query's records.
        decoder: decodes single messages.
        layout: of the query's rows; None if they can only be decoded one by one.
        is_first: the next message is the first since the query was opened.
    """

    consumer: RecordConsumer
    decoder: ChangeRecordDecoder = field(default_factory=ChangeRecordDecoder)
    layout: Layout | None = None
    is_first: bool = True

    def read_layout(self, message: bytes) -> None:
        """Read the result set's metadata in the first message."""
        self.is_first = False
        metadata, self.layout = form_of(message) or (b"", None)
        if self.layout is not None:
            self.decoder.set_metadata(metadata)

    def reset(self) -> None:
        """Begin again, because the query is opened again; all its messages must be decoded."""
        self.decoder.reset()
        self.is_first = True


class BatchDecoder:
    """The decoder of the messages of all queries of a task.

    Args:
        deliver: called with the first 13 columns of data change records and their owners; never by
            two threads at once.
        lock: lets one thread in at a time; a thread keeps it while deliver waits.
    """

    def __init__(
        self, deliver: Deliver, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._deliver = deliver
        self._lock = lock or threading.Lock()
        self._pending: list[tuple[QueryStream, list[bytes]]] = []
        self._pending_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._undelivered: list[tuple[str, Sequence[DataChangeRecord]]] = []
        self._undelivered_rows = 0

    def add(self, stream: QueryStream, messages: list[bytes]) -> None:
        """Add the next messages of a query; they are decoded at once, or later."""
        if stream.is_first:
            stream.read_layout(messages[0])
        with self._lock:
            self._pending.append((stream, messages))
            self._pending_bytes += sum(map(len, messages))
            then = self._decode() if self._pending_bytes >= _PENDING_BYTES_MAX else ()
        _call_all(then)

    def add_records(self, consumer: RecordConsumer, records: Sequence[ChangeRecord]) -> None:
        """Add the next records of a query that decodes its messages itself."""
        with self._lock:
            self._take_records(consumer, records)

    def add_rows(self, consumer: RecordConsumer, rows: Rows) -> None:
        """Add the next records of a query that were decoded elsewhere, by column."""
        with self._lock:
            self._deliver_undelivered()
            wanted = consumer.take_rows(rows)
            batch = rows.batch if wanted is None else rows.batch.filter(pa.array(wanted))
            if batch.num_rows:
                self._deliver(batch, [(consumer.token, batch.num_rows)])

    def flush(self, *, waiting_min: int = 0) -> None:
        """Decode all pending messages, so that the consumers have their records.

        Args:
            waiting_min: do it only if so many callables wait for it.
        """
        with self._lock:
            then = self._decode() if len(self._waiting) >= waiting_min else ()
        _call_all(then)

    def when_decoded(self, then: Callable[[], None]) -> None:
        """Call something when all messages so far are decoded: now, or later by any thread."""
        with self._lock:
            if self._pending:
                self._waiting.append(then)
                return
        then()

    def deliver_remaining(self) -> None:
        """Deliver the records that wait for a larger batch."""
        with self._lock:
            self._deliver_undelivered()

    def _decode(self) -> Sequence[Callable[[], None]]:
        """Decode the pending messages, each query's in their order; return who waited for it."""
        size, pending, waiting = self._pending_bytes, self._pending, self._waiting
        self._pending, self._pending_bytes, self._waiting = [], 0, []
        if size < _BY_COLUMN_BYTES_MIN:
            self._decode_one_by_one(pending)
            return waiting
        by_query: dict[int, tuple[QueryStream, list[bytes]]] = {}
        for stream, messages in pending:
            by_query.setdefault(id(stream), (stream, []))[1].extend(messages)
        by_layout: dict[Layout | None, list[tuple[QueryStream, list[bytes]]]] = {}
        for query in by_query.values():
            by_layout.setdefault(query[0].layout, []).append(query)
        for layout, queries in by_layout.items():
            if layout is None:
                self._decode_one_by_one(queries)
            else:
                self._decode_by_column(layout, queries)
        return waiting

    def _decode_one_by_one(self, queries: Sequence[tuple[QueryStream, list[bytes]]]) -> None:
        for stream, messages in queries:
            for message in messages:
                self._take_records(stream.consumer, stream.decoder.feed(message))

    def _decode_by_column(
        self, layout: Layout, queries: Sequence[tuple[QueryStream, list[bytes]]]
    ) -> None:
        """Decode messages of queries with the same layout."""
        together = [message for _, messages in queries for message in messages]
        columns = _by_column(layout, together)
        self._deliver_undelivered()
        ends = np.cumsum([len(messages) for _, messages in queries])
        rows = np.searchsorted(columns.message_of, ends)
        delivery = _Delivery(columns, rows)
        position = begin_row = 0
        for (stream, messages), end_row in zip(queries, rows.tolist(), strict=True):
            # A value that was begun before these messages may go on in one that looks whole.
            is_usual = delivery.next_fallback(position) >= position + len(messages)
            if stream.decoder.has_partial_value or not is_usual:
                self._consume_in_order(delivery, stream, messages, position)
            else:
                delivery.take_rows(stream.consumer, begin_row, end_row)
            position, begin_row = position + len(messages), end_row
        delivery.deliver(self._deliver)

    def _consume_in_order(
        self, delivery: "_Delivery", stream: QueryStream, messages: Sequence[bytes], position: int
    ) -> None:
        """Give a query's records to its consumer in order, those decoded by column and others."""
        consumer, decoder = stream.consumer, stream.decoder
        end = position + len(messages)
        begin_row, end_row = delivery.rows_of(position, end)
        number = position
        while number < end:
            # A message that continues a value of the message before it can look whole.
            if not decoder.has_partial_value:
                number = delivery.next_fallback(number)
                if number >= end:
                    break
            first, next_row = delivery.rows_of(number, number + 1)
            records = decoder.feed(messages[number - position])
            delivery.take_rows(consumer, begin_row, first)
            begin_row = next_row
            if data := consumer.take_records(records):
                delivery.add_records(consumer.token, data)
            number += 1
        delivery.take_rows(consumer, begin_row, end_row)

    def _take_records(self, consumer: RecordConsumer, records: Sequence[ChangeRecord]) -> None:
        if data := consumer.take_records(records):
            self._undelivered.append((consumer.token, data))
            self._undelivered_rows += len(data)
            if self._undelivered_rows >= _UNDELIVERED_ROWS_MAX:
                self._deliver_undelivered()

    def _deliver_undelivered(self) -> None:
        undelivered, self._undelivered, self._undelivered_rows = self._undelivered, [], 0
        if undelivered:
            records = [record for _, group in undelivered for record in group]
            self._deliver(
                data_columns(records), [(token, len(group)) for token, group in undelivered]
            )


def _call_all(waiting: Sequence[Callable[[], None]]) -> None:
    for then in waiting:
        then()


def _by_column(layout: Layout, messages: Sequence[bytes]) -> Columns:
    if layout.is_proto:
        return decode_proto_columns(messages)
    return decode_json_columns(messages) if layout.is_json else decode_columns(messages, layout)


class _Delivery:
    """The rows to deliver of messages that were decoded by column, and records between them."""

    def __init__(self, columns: Columns, begins: Ints) -> None:
        self._columns = columns
        self._rows = Rows.of(columns.batch, begins)
        self._fallback_messages = columns.fallback_messages
        self._parts: list[pa.RecordBatch | Rows] = []
        self._owners: list[tuple[str, int]] = []
        # As long as no row was left out and none added, the parts are the whole batch.
        self._is_whole_batch = True

    def rows_of(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first row of message begin, and the first of message end."""
        rows = np.searchsorted(self._columns.message_of, (begin, end))
        return int(rows[0]), int(rows[1])

    def next_fallback(self, message: int) -> int:
        """Return the first message from this one on that was not decoded by column.

        It is beyond the last message if there is none.
        """
        at = bisect_left(self._fallback_messages, message)
        return self._fallback_messages[at] if at < len(self._fallback_messages) else sys.maxsize

    def take_rows(self, consumer: RecordConsumer, begin: int, end: int) -> None:
        """Give the rows [begin, end) to their consumer, and add those to be delivered."""
        if begin == end:
            return
        part = self._rows.part(begin, end)
        wanted = consumer.take_rows(part)
        if wanted is not None and not wanted.all():
            part = part.filter(wanted)
            self._is_whole_batch = False
        self._add(consumer.token, part, len(part))

    def add_records(self, token: str, records: Sequence[DataChangeRecord]) -> None:
        """Add records that were decoded one by one."""
        self._is_whole_batch = False
        self._add(token, data_columns(records), len(records))

    def _add(self, token: str, part: pa.RecordBatch | Rows, rows: int) -> None:
        if rows:
            self._parts.append(part)
            self._owners.append((token, rows))

    def deliver(self, deliver: Deliver) -> None:
        """Deliver everything that was added."""
        rows = sum(count for _, count in self._owners)
        if not rows:
            return
        if self._is_whole_batch and rows == self._columns.batch.num_rows:
            deliver(self._columns.batch, self._owners)
        else:
            parts = (part.batch if isinstance(part, Rows) else part for part in self._parts)
            deliver(pa.concat_batches(parts), self._owners)
