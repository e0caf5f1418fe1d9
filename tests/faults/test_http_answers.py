"""An answer of a proxy or a load balancer that is not gRPC's never stops a pipeline for good."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, code_of, to_reader_error

STREAM = ChangeStream("project", "instance", "database", "S")
# By "HTTP to gRPC Status Code Mapping" in gRPC's documentation.
STATUSES = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.UNKNOWN,
    429: grpc.StatusCode.UNAVAILABLE,
    500: grpc.StatusCode.UNKNOWN,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}


@contextmanager
def answering(answer: int | ErrorCodes) -> Iterator[str]:
    """Serve HTTP/2 that answers a request with a status, or resets its stream."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        http = H2Connection(H2Configuration(client_side=False))
        http.initiate_connection()
        with client:
            client.sendall(http.data_to_send())
            while data := client.recv(65_536):
                for event in http.receive_data(data):
                    if isinstance(event, RequestReceived):
                        _answer(http, event.stream_id, answer)
                client.sendall(http.data_to_send())

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(240)


def _answer(http: H2Connection, stream: int | None, answer: int | ErrorCodes) -> None:
    assert stream is not None
    if isinstance(answer, ErrorCodes):
        http.reset_stream(stream, answer)
    else:
        headers = [(":status", str(answer)), ("content-type", "text/html")]
        http.send_headers(stream, headers)
        http.send_data(stream, b"<html>no gRPC here</html>", end_stream=True)


def failure(host: str) -> BaseException:
    with grpc.insecure_channel(host) as channel:
        call = channel.unary_stream("/google.spanner.v1.Spanner/ExecuteStreamingSql")
        try:
            list(call(b"", timeout=240))
        except CALL_ERRORS as error:
            return error
    raise AssertionError("the call did not fail")


@pytest.mark.parametrize("status", STATUSES)
def test_an_http_status_is_tried_again(status: int) -> None:
    with answering(status) as host:
        error = failure(host)
    # A stream that ends before its headers are looked at has no status of its own.
    assert code_of(error) in (STATUSES[status], grpc.StatusCode.UNKNOWN)
    assert not to_reader_error(error, STREAM).user_error


@pytest.mark.parametrize("reset", ErrorCodes, ids=lambda code: str(code.name))
def test_a_stream_that_is_reset_is_tried_again(reset: ErrorCodes) -> None:
    with answering(reset) as host:
        error = failure(host)
    assert not to_reader_error(error, STREAM).user_error
