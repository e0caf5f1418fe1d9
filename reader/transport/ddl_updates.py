"""The requests of DDL statements that Spanner has carried out, as its admin API lists them."""

from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.cloud.spanner_admin_database_v1.types import UpdateDatabaseDdlMetadata
from google.longrunning.operations_pb2 import ListOperationsRequest, ListOperationsResponse

from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import code_of

PERMISSION: Final = "spanner.databaseOperations.list"
_METHOD: Final = "/google.longrunning.Operations/ListOperations"
# The credentials may not, or the server does not know how to.
_NOT_LISTED: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class DdlUpdate:
    """A request of DDL statements.

    Attributes:
        statements: their texts.
        times_ns: the commit timestamps of the first ones, which have been carried out.
        is_done: none of the others will be carried out any more.
    """

    statements: tuple[str, ...]
    times_ns: tuple[int, ...]
    is_done: bool


def ddl_updates(connection: Connection) -> list[DdlUpdate] | None:
    """Return the requests that Spanner still lists, which are those of seven days.

    See "projects.instances.databases.operations.list" in Spanner's documentation. The emulator does
    not know ListDatabaseOperations, which would filter.

    Returns:
        None if the credentials lack the PERMISSION.

    Raises:
        ReaderError: as Connection.query().
    """
    stub = connection.channel().unary_unary(
        _METHOD,
        request_serializer=ListOperationsRequest.SerializeToString,
        response_deserializer=ListOperationsResponse.FromString,
    )
    request = ListOperationsRequest(name=f"{connection.change_stream.database_path}/operations")
    metadata = (("x-goog-request-params", f"name={request.name}"),)

    def call() -> Any:
        try:
            return stub(request, timeout=_SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as error:
            if code_of(error) in _NOT_LISTED:
                return None
            raise

    updates: list[DdlUpdate] = []
    while True:
        answer = connection.retry(call)
        if answer is None:
            return None
        for operation in answer.operations:
            update = UpdateDatabaseDdlMetadata.pb(UpdateDatabaseDdlMetadata())
            if operation.metadata.Unpack(update):
                times_ns = tuple(stamp.ToNanoseconds() for stamp in update.commit_timestamps)
                updates.append(DdlUpdate(tuple(update.statements), times_ns, operation.done))
        if not answer.next_page_token:
            return updates
        request.page_token = answer.next_page_token
