"""The service behind gRPC, in a thread or in a process of its own."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from tests.synthetic.bigtable.history import History
from tests.synthetic.bigtable.messages import table_with_stream
from tests.synthetic.bigtable.service import TABLE, BigtableService, Disturbance
from tests.synthetic.grpc_over_h2 import GrpcServer, Stream, Unary, in_a_process

# Long enough that few messages go out alone when changes come by the thousand a second.
_DELAY_US = 20_000


class SyntheticBigtable(GrpcServer):
    """`with SyntheticBigtable(history) as server: ... server.host`.

    Args:
        history: at the times of the real clock; or the service over one.
        faults: break calls; a service has its own.
    """

    def __init__(
        self, history: History | BigtableService, faults: Disturbance | None = None
    ) -> None:
        if isinstance(history, History):
            history = live_service(history, faults)
        streams: dict[str, Stream] = {
            "GenerateInitialChangeStreamPartitions": history.generate,
            "ReadChangeStream": history.read,
        }
        unary: dict[str, Unary] = {
            "PingAndWarm": lambda request: b"",
            "GetTable": lambda request: table_with_stream(TABLE),
        }
        super().__init__(unary, streams)


def live_service(history: History, faults: Disturbance | None = None) -> BigtableService:
    """Return the service over a history at the real clock's times."""
    return BigtableService(history, clock_us=now_us, faults=faults, delay_us=_DELAY_US)


def now_us() -> int:
    """Return the real clock's time."""
    return time.time_ns() // 1_000


def bigtable_process(
    make: Callable[[], History], faults: Disturbance | None = None
) -> AbstractContextManager[str]:
    """The server in a process of its own, which outlives the pipelines of a test; its host.

    Args:
        make: returns the history there, which may be too large to send.
        faults: break calls.
    """
    return in_a_process(partial(_server, make, faults))


def _server(make: Callable[[], History], faults: Disturbance | None) -> SyntheticBigtable:
    service = live_service(make(), faults)
    service.encode_all()
    return SyntheticBigtable(service)
