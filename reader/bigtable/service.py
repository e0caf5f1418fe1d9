"""Calls of Bigtable's API for one table, and the meaning of its errors."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.cloud.bigtable_admin_v2.types import GetTableRequest, Table
from google.cloud.bigtable_v2.types import (
    GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from slackwater.google_credentials import BIGTABLE_SCOPES
from slackwater.reader.bigtable.positions import Read
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.reader.bigtable.table import EMULATOR_VARIABLE, BigtableTable
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    PermissionDeniedError,
    ReaderError,
    StartTooOldError,
    UnauthenticatedError,
    UnavailableError,
)
from slackwater.reader.transport.channels import Channels
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, code_of, details_of
from slackwater.reader.transport.stream_call import Call
from slackwater.timestamp import us_to_ns

T = TypeVar("T")

ChangeMessage: Final = type(ReadChangeStreamResponse.pb(ReadChangeStreamResponse()))
_Partitions: Final = type(
    GenerateInitialChangeStreamPartitionsResponse.pb(
        GenerateInitialChangeStreamPartitionsResponse()
    )
)
_Table: Final = type(Table.pb(Table()))
_DATA: Final = "/google.bigtable.v2.Bigtable/"
_GET_TABLE: Final = "/google.bigtable.admin.v2.BigtableTableAdmin/GetTable"
_CALL_SECONDS_MAX: Final = 30.0
# The same request would get the same answer in a moment.
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


@dataclass(frozen=True, slots=True)
class ChangeStreamConfig:
    """The change stream of a table.

    Attributes:
        retention_ns: how long Bigtable keeps changes; None if the table has no change stream.
        families: the names of the table's column families.
    """

    retention_ns: int | None
    families: frozenset[str] = frozenset()


class BigtableService:
    """Bigtable's API for one table, for many threads; open one in each process, after any fork."""

    def __init__(self, table: BigtableTable) -> None:
        self.table = table
        self.is_closed = False
        self._lock = threading.Lock()
        self._data = Channels(table.server("bigtable"), BIGTABLE_SCOPES)
        self._admin = Channels(table.server("bigtableadmin"), BIGTABLE_SCOPES)

    def config(self) -> ChangeStreamConfig:
        """Return the properties of the table's change stream.

        Raises:
            ReaderError: there is no such table, or Bigtable does not answer.
        """
        request = GetTableRequest.pb(GetTableRequest(name=self.table.path, view=Table.View.FULL))

        def call() -> Any:
            stub = self._admin.channel().unary_unary(
                _GET_TABLE,
                request_serializer=_serialized,
                response_deserializer=_Table.FromString,
            )
            return stub(request, timeout=10.0, metadata=_routed("name", self.table.path))

        table = self.retry(call)
        if not table.HasField("change_stream_config"):
            return ChangeStreamConfig(None)
        retention_ns = table.change_stream_config.retention_period.ToNanoseconds()
        return ChangeStreamConfig(retention_ns, frozenset(table.column_families))

    def partitions(self) -> list[RowRange]:
        """Return the partitions of the table at present.

        Raises:
            ReaderError: Bigtable's answer; a retryable one after 30 s of attempts.
        """
        request = GenerateInitialChangeStreamPartitionsRequest.pb(
            GenerateInitialChangeStreamPartitionsRequest(
                table_name=self.table.path, app_profile_id=self.table.app_profile
            )
        )

        def call() -> list[RowRange]:
            method = f"{_DATA}GenerateInitialChangeStreamPartitions"
            answers = self._streaming(method, request, _CALL_SECONDS_MAX)
            return [row_range(_Partitions.FromString(a).partition) for a in answers]

        return self.retry(call)

    def read(self, read: Read, token: str | None, end_us: int | None, heartbeat_ms: int) -> Call:
        """Start to read a partition; the call raises errors as Call says.

        Args:
            read: the partition, and the positions of its parts.
            token: of the whole partition, in place of the parts' positions; None before the first.
            end_us: the time through which changes are read, in microseconds; None for no end.
            heartbeat_ms: the heartbeat interval asked of Bigtable.
        """
        request = ReadChangeStreamRequest.pb(
            ReadChangeStreamRequest(
                table_name=self.table.path, app_profile_id=self.table.app_profile
            )
        )
        _set_range(request.partition, read.partition)
        tokens = (
            [(read.partition, token)]
            if token is not None
            else [(each.keys, each.token) for each in read.positions if each.token is not None]
        )
        for keys, text in tokens:
            part = request.continuation_tokens.tokens.add(token=text)
            _set_range(part.partition, keys)
        if not tokens:
            request.start_time.FromMicroseconds(read.positions[0].at_us)
        if end_us is not None:
            request.end_time.FromMicroseconds(end_us)
        request.heartbeat_duration.FromMilliseconds(heartbeat_ms)
        return self._streaming(f"{_DATA}ReadChangeStream", request)

    def _streaming(self, method: str, request: Any, seconds_max: float | None = None) -> Call:
        metadata = _routed("table_name", self.table.path)
        return self._data.start(method, _serialized(request), metadata, seconds_max)

    def retry(self, call: Callable[[], T]) -> T:
        """Return call()'s result, repeating it with jitter while its error is retryable.

        Raises:
            ReaderError: Bigtable's last answer.
        """
        try:
            return Retrying(
                retry=retry_if_exception(lambda error: is_retryable(error) and not self.is_closed),
                wait=wait_random_exponential(multiplier=0.05, max=5),
                stop=stop_after_delay(_CALL_SECONDS_MAX),
                reraise=True,
            )(call)
        except CALL_ERRORS as error:
            raise to_reader_error(error, self.table) from error

    def now_ns(self) -> int:
        """Return this machine's clock, in whole microseconds: Bigtable's can't be asked for."""
        return us_to_ns(time.time_ns() // 1_000)

    def close(self) -> None:
        """Close the channels; running calls fail."""
        self.is_closed = True
        self._data.close()
        self._admin.close()


def row_range(partition: Any) -> RowRange:
    """Return the keys of a StreamPartition."""
    return RowRange(partition.row_range.start_key_closed, partition.row_range.end_key_open)


def _set_range(partition: Any, keys: RowRange) -> None:
    partition.row_range.start_key_closed, partition.row_range.end_key_open = keys


def _serialized(message: Any) -> bytes:
    text: bytes = message.SerializeToString()
    return text


def _routed(name: str, path: str) -> tuple[tuple[str, str], ...]:
    return (("x-goog-request-params", f"{name}={path}"),)


def is_retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed in a moment."""
    return isinstance(error, CALL_ERRORS) and code_of(error) not in _REFUSALS


def to_reader_error(error: BaseException, table: BigtableTable) -> ReaderError:
    """Return the error to raise for a failed call, with a hint at what to do about it."""
    code, message = code_of(error), details_of(error)
    where = f"Bigtable answered {code.name} for {table.path}: {message}"
    match code:
        case grpc.StatusCode.NOT_FOUND:
            return NotFoundError(where, "Correct the name, or create it")
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDeniedError(where, "Grant roles/bigtable.reader on the table")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(
                where,
                "Provide Application Default Credentials: gcloud auth application-default login,"
                " or name a file in source.credentials_file. For an emulator set"
                f" {EMULATOR_VARIABLE}=HOST:PORT",
            )
        case grpc.StatusCode.OUT_OF_RANGE:
            return StartTooOldError(
                "the changes to be read next lie before the change stream's retention period or"
                f" its creation. {where}",
                "A new pipeline starts later: use start: earliest. If it has run before, the"
                " changes from its last epoch to then are gone. To continue without them:"
                " `slackwater run --skip-to earliest`, which records the gap",
            )
        case grpc.StatusCode.FAILED_PRECONDITION:
            return InvalidQueryError(
                where,
                "The table needs a change stream, and source.app_profile an application profile"
                " with single-cluster routing",
            )
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.UNIMPLEMENTED:
            return InvalidQueryError(
                where,
                "If the table was dropped and made again, its earlier changes are gone. To continue"
                " without them: `slackwater run --skip-to earliest`, which records the gap",
            )
        case _:
            server = table.server("bigtable").target
            return UnavailableError(where, f"Check the network, and that {server} answers")
