"""A server that speaks Spanner's protocol and breaks its streams by a script.

It stands in where the emulator can't show a fault. It serves one partition's records from any
start_timestamp on, as Spanner does, one message a record.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
from google.cloud.spanner_v1.types import CreateSessionRequest, ExecuteSqlRequest, Session

from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import ChangeRecord
from slackwater.timestamp import parse_rfc3339
from tests.support.spanner_messages import googlesql_row, messages

_EXECUTE = "/google.spanner.v1.Spanner/ExecuteStreamingSql"
_CREATE = "/google.spanner.v1.Spanner/CreateSession"


class BreakingSpanner:
    """Args: records of the partition; breaks, one for each query: (after n messages, status)."""

    def __init__(
        self,
        records: Sequence[ChangeRecord],
        breaks: Sequence[tuple[int, grpc.StatusCode, str] | None],
    ) -> None:
        self._records = records
        self._breaks = list(breaks)
        self.starts: list[int] = []
        self.asked: list[Any] = []
        self.roles: list[str] = []
        self.multiplexed: list[bool] = []
        self.sessions = 0
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(None).wait()

    def create_session(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        self.sessions += 1
        session = CreateSessionRequest.deserialize(request).session
        self.roles.append(session.creator_role)
        self.multiplexed.append(session.multiplexed)
        name = f"projects/p/instances/i/databases/d/sessions/{self.sessions}"
        return bytes(Session.serialize(Session(name=name)))

    def execute(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        asked = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request))
        self.asked.append(asked)
        start_ns = parse_rfc3339(asked.params.fields["start_timestamp"].string_value)
        self.starts.append(start_ns)
        broken = self._breaks.pop(0) if self._breaks else None
        rows = [googlesql_row(r) for r in self._records if record_time_ns(r) >= start_ns]
        for i, message in enumerate(messages(rows, is_postgresql=False)):
            if broken is not None and i == broken[0]:
                context.abort(broken[1], broken[2])
            yield message
        if broken is not None:
            context.abort(broken[1], broken[2])


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, spanner: BreakingSpanner) -> None:
        self._spanner = spanner

    def service(self, details: Any) -> Any:
        if details.method == _EXECUTE:
            return grpc.unary_stream_rpc_method_handler(self._spanner.execute)
        if details.method == _CREATE:
            return grpc.unary_unary_rpc_method_handler(self._spanner.create_session)
        return None
