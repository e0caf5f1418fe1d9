"""All gRPC codes, with messages such as proxies, load balancers and gRPC itself send."""

import random
from dataclasses import dataclass
from typing import Final

import grpc


@dataclass(frozen=True, slots=True)
class Status:
    """A status with which a call can end."""

    code: grpc.StatusCode
    message: str

    @property
    def kind(self) -> str:
        """The name under which it is counted."""
        return "session lost" if "Session" in self.message else str(self.code.name)


# Those that the reader repeats within the query.
RESETS: Final = (
    Status(grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8"),
    Status(grpc.StatusCode.UNKNOWN, "Stream removed"),
    Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded"),
    Status(grpc.StatusCode.ALREADY_EXISTS, "409 Conflict"),
    Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded"),
    Status(grpc.StatusCode.FAILED_PRECONDITION, "400 Bad Request"),
    Status(grpc.StatusCode.ABORTED, "Transaction was aborted."),
    Status(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404"),
    Status(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
    Status(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
    Status(grpc.StatusCode.DATA_LOSS, "Truncated body"),
    Status(grpc.StatusCode.NOT_FOUND, "Session not found: projects/p/.../sessions/1"),
)
# Those for which the epoch is tried again.
REFUSALS: Final = (
    Status(grpc.StatusCode.INVALID_ARGUMENT, "400 Bad Request"),
    Status(grpc.StatusCode.NOT_FOUND, "404 Not Found: no such host"),
    Status(grpc.StatusCode.PERMISSION_DENIED, "Received http2 header with status: 403"),
    Status(grpc.StatusCode.OUT_OF_RANGE, "416 Range Not Satisfiable"),
    Status(grpc.StatusCode.UNAUTHENTICATED, "Received http2 header with status: 401"),
)


def any_status(choose: random.Random, refusals: float) -> Status:
    """Choose a status.

    Args:
        choose: the seed's choices.
        refusals: how likely it is one of REFUSALS.
    """
    return choose.choice(REFUSALS if choose.random() < refusals else RESETS)
