"""A buffered stream of the Storage Write API: appended rows are shown up to where it is flushed.

Offsets make an append that is repeated harmless: BigQuery answers ALREADY_EXISTS. So does a flush
to an offset that was flushed. A stream of which it is not known how far it was appended to is left:
rows that are not flushed are never seen.

BigQuery refuses to flush a stream that is finalized. So one that a commit may name is not, and
BigQuery removes it after seven days without requests (its documentation, "Best practices").
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, FlushRowsRequest, WriteStream

from slackwater.grouping import groups_by_size
from slackwater.spark_sink.errors import BigQueryError, SinkError
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.appends import (
    REQUEST_MAX,
    TIMEOUT_S,
    Appends,
    attempts,
)
from slackwater.spark_sink.output.bigquery.clients import Clients, requests_to

# An epoch waits for it, and nothing depends on it.
_FINALIZED_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of a stream that a commit shows.

    Attributes:
        stream: its name.
        last: the offset of the last row.
    """

    stream: str
    last: int

    @property
    def table(self) -> str:
        """The id of the table that the rows are appended to."""
        return self.stream.rpartition("/streams/")[0].rpartition("/")[2]


class RowStream:
    """The stream to which one process appends the rows of a table.

    Args:
        clients: of the table's dataset.
        address: the table's.
    """

    def __init__(self, clients: Clients, address: TableAddress) -> None:
        self._appends = Appends(clients, address)
        self._name: str | None = None
        # The offset of the next row.
        self._next = 0
        # The last rows, until they are shown.
        self._hidden: Extent | None = None
        # The names of streams that were left.
        self._unused: list[str] = []

    def append(self, batches: Iterable[pa.RecordBatch]) -> Extent:
        """Append rows, of which there is one at least, and which nobody sees yet.

        Raises:
            BigQueryError: BigQuery refuses the rows.
            PublishError: it fails. They are appended to another stream next time.
        """
        if self._hidden is not None:
            # No commit has them: to show later rows of the stream would show these, too.
            self._leave()
        requests = _in_requests(batches)
        try:
            self._append_first(next(requests))
            for batch in requests:
                self._append(batch)
        except BaseException:
            self._leave()
            raise
        assert self._name is not None  # noqa: S101 - there was a row
        self._hidden = Extent(self._name, self._next - 1)
        return self._hidden

    def _leave(self) -> None:
        """Append to another stream next time."""
        if self._name is not None:
            self._unused.append(self._name)
        self._name = self._hidden = None

    def _create(self) -> str:
        self._next = 0
        stream = self._appends.clients.rows.create_write_stream(
            parent=self._appends.address.resource,
            write_stream=WriteStream(type_=WriteStream.Type.BUFFERED),
            retry=None,
            timeout=TIMEOUT_S,
        )
        self._name = stream.name
        return self._name

    def _append_first(self, batch: pa.RecordBatch) -> None:
        """Append an epoch's first batch, to a new stream if the one before does not take it."""
        is_used = self._name is not None and self._next > 0
        try:
            self._append(batch)
        except BigQueryError:
            if not is_used:
                raise
            # BigQuery removes a stream that nobody has used for days.
            self._leave()
            self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        """Append a batch at the next offset; that it was appended before changes nothing."""

        def request() -> AppendRowsRequest:
            return _request(self._name or self._create(), self._next, batch)

        self._appends.append(request, is_new=not self._next)
        self._next += batch.num_rows

    def flush(self, extent: Extent) -> None:
        """Show the rows of an extent, which may be another process's, unless they are shown.

        Raises:
            StreamGoneError: BigQuery has no such stream any more.
            BigQueryError, PublishError: it refuses or fails.
        """
        request: Any = FlushRowsRequest(write_stream=extent.stream, offset=extent.last)
        for attempt in attempts():
            with attempt, requests_to(self._appends.address, "showing rows"):
                try:
                    self._appends.clients.rows.flush_rows(request, retry=None, timeout=TIMEOUT_S)
                except exceptions.AlreadyExists:
                    pass
                except exceptions.NotFound as error:
                    raise StreamGoneError(extent.stream) from error
        if extent == self._hidden:
            self._hidden = None
            self._finalize_one()

    def _finalize_one(self) -> None:
        """Finalize a stream that was left before the rows were appended that are shown now.

        Their commit has the number that a request for a commit with rows of that stream would
        take, however late it arrives.
        """
        if self._unused:
            name = self._unused.pop()
            # It may be gone. Whatever else is wrong, BigQuery removes it later.
            with suppress(SinkError), requests_to(self._appends.address, "finalizing a stream"):
                self._appends.clients.rows.finalize_write_stream(
                    name=name, retry=None, timeout=_FINALIZED_S_MAX
                )


class StreamGoneError(Exception):
    """BigQuery has removed a stream, as it does with those that nobody has used for days."""


def _request(name: str, offset: int, batch: pa.RecordBatch) -> AppendRowsRequest:
    rows = AppendRowsRequest.ArrowData()
    rows.writer_schema.serialized_schema = batch.schema.serialize().to_pybytes()
    rows.rows.serialized_record_batch = batch.serialize().to_pybytes()
    return AppendRowsRequest(write_stream=name, offset=offset, arrow_rows=rows)


def _in_requests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches, each time as many as a request takes: each is waited for."""
    for group in groups_by_size(_divided(batches), lambda batch: batch.nbytes, REQUEST_MAX):
        [joined] = pa.Table.from_batches(group).combine_chunks().to_batches()
        yield joined


def _divided(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches that each fit into a request."""
    for batch in batches:
        if batch.nbytes <= REQUEST_MAX or batch.num_rows <= 1:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from _divided([batch.slice(0, half), batch.slice(half)])
