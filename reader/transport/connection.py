"""The connection to Spanner: channels, credentials, session, and two kinds of call.

Partition queries and reads of rows are streams, whose messages stay bytes: the client's result set
costs ten times as much as decoding. Everything else goes through google-cloud-spanner's generated
client. Both use one multiplexed session, which needs no pool.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.cloud.spanner_v1.services.spanner import SpannerClient
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport
from google.cloud.spanner_v1.types import (
    BeginTransactionRequest,
    CreateSessionRequest,
    DirectedReadOptions,
    ExecuteSqlRequest,
    PartitionQueryRequest,
    RequestOptions,
    Session,
    TransactionOptions,
    TransactionSelector,
    Type,
)
from google.protobuf import json_format
from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.channels import Channels
from slackwater.reader.transport.grpc_errors import (
    CALL_ERRORS,
    is_retryable,
    is_session_lost,
    to_reader_error,
)
from slackwater.reader.transport.read_request import KeySpan, read_request
from slackwater.reader.transport.receive_loop import wait_aside
from slackwater.reader.transport.statement import Statement
from slackwater.reader.transport.stream_call import Call, Metadata

T = TypeVar("T")

_EXECUTE_STREAMING_SQL: Final = "/google.spanner.v1.Spanner/ExecuteStreamingSql"
_STREAMING_READ: Final = "/google.spanner.v1.Spanner/StreamingRead"
_CALL_SECONDS_MAX: Final = 30.0
# A multiplexed session lives for 28 days; Google recommends a new one every 7.
_SESSION_SECONDS_MAX: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class PartitionedRead:
    """A read of the database as it stood at one time, in parts that any process can read.

    Attributes:
        session, transaction_id: those in which the parts' tokens are valid; they outlive this
            process.
    """

    session: str
    transaction_id: bytes


class Connection:
    """A connection to one database, for many threads.

    Open one in each process, after any fork, and reuse it: connecting costs more than a query.

    Attributes:
        is_closed: its owner has closed it, so nothing is to be tried again.
    """

    def __init__(self, change_stream: ChangeStream) -> None:
        self.change_stream = change_stream
        self._lock = threading.Lock()
        self._channels = Channels(change_stream.endpoint)
        self._client: tuple[grpc.Channel, SpannerClient] | None = None
        self._session: str | None = None
        # By one thread or work, for all that wait for it.
        self._opening: Future[str] | None = None
        self._session_made = 0.0
        self._templates: dict[str, Any] = {}
        self.is_closed = False

    def query(self, sql: str, at_ns: int | None = None) -> list[list[Any]]:
        """Return the rows of a small read, as Spanner's JSON values.

        Args:
            sql: a query.
            at_ns: the read timestamp, nanoseconds; None for a strong read.

        Raises:
            ReaderError: Spanner's answer; a retryable one after 30 s of attempts.
        """
        return [list(row) for row in self._execute_sql(sql, at_ns).rows]

    def strong_read_timestamp_ns(self) -> int:
        """Return Spanner's clock: every transaction committed at or before it is visible.

        Raises:
            ReaderError: as query().
        """
        stamp = self._execute_sql("SELECT 1").metadata.transaction.read_timestamp
        return int(stamp.timestamp_pb().ToNanoseconds())

    def read(self, sql: str, at_ns: int) -> Call:
        """Start a read of the database as it stood at a time; errors are raised as in stream().

        Args:
            sql: a query.
            at_ns: the read timestamp, nanoseconds; within the database's version retention period.
        """
        return self._start(ExecuteSqlRequest.pb(self._request(sql, at_ns)))

    def read_keys(
        self, table: str, columns: Sequence[str], span: KeySpan, at_ns: int, seconds_max: float
    ) -> Call:
        """Start to read rows in their key's order; errors are raised as in stream().

        Args:
            table: its full name.
            columns: the names of the columns to read.
            span: the rows' keys.
            at_ns: the read timestamp, nanoseconds; within the database's version retention period.
            seconds_max: after which the call fails.
        """
        request = read_request(self._request("", at_ns), table, columns, span)
        return self._start(request, _STREAMING_READ, seconds_max)

    def partitioned_read(
        self, sql: str, at_ns: int, read: PartitionedRead | None = None
    ) -> tuple[PartitionedRead, list[bytes]]:
        """Divide a read of the database as it stood at a time into parts.

        See "Read data in parallel" in Spanner's documentation.

        Args:
            sql: a query that Spanner can divide, such as a SELECT of one table.
            at_ns: the read timestamp, nanoseconds.
            read: the same for all queries of a snapshot; None for the first.

        Returns:
            The read, and the partition tokens of its parts.

        Raises:
            ReaderError: as query().
        """
        if read is None:
            read = self._begin_read(at_ns)
        request = PartitionQueryRequest(
            session=read.session,
            transaction=TransactionSelector(id=read.transaction_id),
            sql=sql,
        )
        response = self.retry(
            lambda: self._spanner().partition_query(request=request, retry=None, timeout=60.0)
        )
        return read, [part.partition_token for part in response.partitions]

    def read_part(
        self, sql: str, read: PartitionedRead, token: bytes, *, data_boost: bool = False
    ) -> Call:
        """Start to read one part; errors are raised as in stream().

        Args:
            sql: the query that was divided.
            read: returned by partitioned_read().
            token: of the part.
            data_boost: read with Data Boost, which does not use the instance's compute.
        """
        request = ExecuteSqlRequest.pb(self._request(sql))
        request.session = read.session
        request.transaction.Clear()
        request.transaction.id = read.transaction_id
        request.partition_token = token
        request.data_boost_enabled = data_boost
        return self._start(request)

    def _begin_read(self, at_ns: int) -> PartitionedRead:
        session = self._session_name()
        request = BeginTransactionRequest(session=session)
        only = BeginTransactionRequest.pb(request).options.read_only
        only.read_timestamp.FromNanoseconds(at_ns)
        begun = self.retry(
            lambda: self._spanner().begin_transaction(request=request, retry=None, timeout=10.0)
        )
        return PartitionedRead(session, begun.id)

    def stream(self, statement: Statement) -> Call:
        """Start a partition query; its iterator raises errors as grpcio does.

        Raises:
            ReaderError: there is no session, and none can be made.
        """
        template = self._templates.get(statement.sql)
        if template is None:
            # Thousands of partition queries differ in their parameters only.
            template = ExecuteSqlRequest.pb(self._request(statement.sql))
            for name, code in statement.types.items():
                template.param_types[name].CopyFrom(Type.pb(Type(code=code)))
            self._templates[statement.sql] = template
        request = type(template)()
        request.CopyFrom(template)
        request.session = self._session_name()
        for name, value in statement.params.items():
            if value is None:
                request.params.fields[name].null_value = 0
            else:
                request.params.fields[name].string_value = value
        return self._start(request)

    def _start(
        self, request: Any, method: str = _EXECUTE_STREAMING_SQL, seconds_max: float | None = None
    ) -> Call:
        serialized, metadata = request.SerializeToString(), self._metadata(request)
        return self._channels.start(method, serialized, metadata, seconds_max)

    def _metadata(self, request: Any) -> Metadata:
        return (
            ("google-cloud-resource-prefix", self.change_stream.database_path),
            ("x-goog-request-params", f"session={request.session}"),
        )

    def retry(self, call: Callable[[], T], *, seconds_max: float = _CALL_SECONDS_MAX) -> T:
        """Return call()'s result, repeating it with jitter while its error is retryable.

        Raises:
            ReaderError: Spanner's last answer.
        """
        try:
            return Retrying(
                retry=retry_if_exception(self._may_retry),
                wait=wait_random_exponential(multiplier=0.05, max=5),
                stop=stop_after_delay(seconds_max),
                reraise=True,
            )(call)
        except CALL_ERRORS as error:
            raise to_reader_error(error, self.change_stream) from error

    def forget_session_if_lost(self, error: BaseException) -> None:
        """Forget the session if the error says that it is lost; the next call makes another."""
        if is_session_lost(error):
            with self._lock:
                self._session = None

    def close(self) -> None:
        """Close the channels; running calls fail."""
        self.is_closed = True
        self._channels.close()
        self._client = None

    def _may_retry(self, error: BaseException) -> bool:
        self.forget_session_if_lost(error)
        return is_retryable(error) and not self.is_closed

    def _execute_sql(self, sql: str, at_ns: int | None = None) -> Any:
        def call() -> Any:
            request = self._request(sql, at_ns)
            return self._spanner().execute_sql(request=request, retry=None, timeout=10.0)

        return self.retry(call)

    def _request(self, sql: str, at_ns: int | None = None) -> ExecuteSqlRequest:
        stream = self.change_stream
        request = ExecuteSqlRequest(
            session=self._session_name(),
            sql=sql,
            transaction=TransactionSelector(
                single_use=TransactionOptions(
                    read_only=TransactionOptions.ReadOnly(
                        strong=True,
                        # Spanner's answer to a change stream query has a meaningless value here.
                        return_read_timestamp=True,
                    )
                )
            ),
            request_options=RequestOptions(
                priority=f"PRIORITY_{stream.priority.upper()}" if stream.priority else None,
                request_tag=stream.request_tag or "",
            ),
        )
        if at_ns is not None:
            only = ExecuteSqlRequest.pb(request).transaction.single_use.read_only
            only.ClearField("strong")
            only.read_timestamp.FromNanoseconds(at_ns)
        if stream.directed_read:
            options = DirectedReadOptions.pb(request.directed_read_options)
            json_format.ParseDict(dict(stream.directed_read), options)
            request.directed_read_options = DirectedReadOptions.wrap(options)
        return request

    def _session_name(self) -> str:
        with self._lock:
            age = time.monotonic() - self._session_made
            if self._session is not None and age < _SESSION_SECONDS_MAX:
                return self._session
            opening, is_first = self._opening, self._opening is None
            if opening is None:
                opening = self._opening = Future[str]()
        if not is_first:
            return wait_aside(opening.result)
        try:
            name = wait_aside(self._new_session)
            with self._lock:
                self._session, self._session_made = name, time.monotonic()
            opening.set_result(name)
        except BaseException as error:
            opening.set_exception(error)
            raise
        finally:
            with self._lock:
                self._opening = None
        return name

    def _new_session(self) -> str:
        session = Session(multiplexed=True, creator_role=self.change_stream.database_role or "")
        created = self.retry(
            lambda: self._spanner().create_session(
                request=CreateSessionRequest(
                    database=self.change_stream.database_path, session=session
                ),
                retry=None,
                timeout=10.0,
            ),
        )
        return str(created.name)

    def channel(self) -> grpc.Channel:
        """Return a channel for a call of another API of Spanner's."""
        return self._channels.channel()

    def _spanner(self) -> SpannerClient:
        channel = self._channels.channel()
        with self._lock:
            if self._client is None or self._client[0] is not channel:
                client = SpannerClient(transport=SpannerGrpcTransport(channel=channel))
                self._client = channel, client
            return self._client[1]
