"""gRPC servers whose calls, of any name, are answered by a function."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

# Gets the call's details, its request as bytes, and its context; returns the answer as bytes.
Answer = Callable[[Any, bytes, grpc.ServicerContext], bytes]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Run a server without TLS while the context is open; yield HOST:PORT."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: answer(details, request, context)
            )

    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
