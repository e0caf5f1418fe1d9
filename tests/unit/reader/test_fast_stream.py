"""A call's messages come as grpcio's own iterator gives them, however the call ends."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.transport.fast_stream import CHANNEL_OPTIONS, fast_messages, is_supported

CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.ABORTED)
# Sizes of the messages, the status after them, whether the client waits for each.
Scripted = tuple[list[int], grpc.StatusCode, bool]


class Scripts(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that sends what its script says."""

    script: Scripted = ([], grpc.StatusCode.OK, False)
    goes_on = threading.Event()

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_stream_rpc_method_handler(self._send)

    def _send(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del request
        sizes, code, is_slow = self.script
        for number, size in enumerate(sizes):
            if is_slow:
                time.sleep(0.002)
            yield bytes([number % 256]) * size
        if code is grpc.StatusCode.CANCELLED:
            self.goes_on.wait(240)
        elif code is not grpc.StatusCode.OK:
            context.abort(code, "as the script says")


Start = Callable[[Scripted], Any]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts a call whose server follows a script."""
    scripts = Scripts()
    server = grpc.server(ThreadPoolExecutor(4), handlers=(scripts,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        stub = channel.unary_stream("/test/Stream", response_deserializer=None)

        def begin(script: Scripted) -> Any:
            scripts.script = script
            return stub(b"")

        yield begin
    scripts.goes_on.set()
    server.stop(None)


def outcome(call: Any, messages: Iterator[bytes]) -> tuple[list[bytes], object, object, bool]:
    """What came, how it ended, and whether the call itself was raised."""
    received: list[bytes] = []
    is_raised = False
    try:
        received.extend(messages)
    except grpc.RpcError as error:
        is_raised = error is call
    return received, call.code(), call.details(), is_raised


def test_the_installed_grpcio_is_supported_and_its_iterator_is_not_used(start: Start) -> None:
    call = start(([600] * 5, grpc.StatusCode.OK, False))
    assert is_supported(call)
    call._next = None
    assert len(list(fast_messages(call))) == 5


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.lists(st.sampled_from((1, 600, 70_000)), max_size=30),
        st.sampled_from((grpc.StatusCode.OK, *CODES)),
        st.booleans(),
    )
)
def test_messages_and_status_are_those_of_grpcios_iterator(start: Start, script: Scripted) -> None:
    plain = start(script)
    wanted = outcome(plain, iter(plain))
    call = start(script)
    assert outcome(call, fast_messages(call)) == wanted
    assert wanted[1] is script[1]
    assert wanted[3] == (script[1] is not grpc.StatusCode.OK)


@pytest.mark.parametrize("count", [0, 5])
def test_another_thread_ends_a_call_that_waits(start: Start, count: int) -> None:
    call = start(([600] * count, grpc.StatusCode.CANCELLED, False))
    timer = threading.Timer(0.2, call.cancel)
    timer.start()
    received, code, *_ = outcome(call, fast_messages(call))
    timer.join()
    assert (len(received), code) == (count, grpc.StatusCode.CANCELLED)


def test_another_thread_ends_calls_whose_messages_flow(start: Start) -> None:
    seen = set()
    for number in range(60):
        call = start(([600] * 300, grpc.StatusCode.OK, False))
        timer = threading.Timer(number / 5_000, call.cancel)
        timer.start()
        received, code, *_ = outcome(call, fast_messages(call))
        timer.join()
        assert received == [bytes([n % 256]) * 600 for n in range(len(received))]
        assert code is grpc.StatusCode.CANCELLED or len(received) == 300
        seen.add(code)
    assert grpc.StatusCode.CANCELLED in seen


def test_a_call_that_was_ended_before_it_was_read_has_no_messages(start: Start) -> None:
    call = start(([600] * 5, grpc.StatusCode.OK, False))
    call.cancel()
    assert outcome(call, fast_messages(call))[:2] == ([], grpc.StatusCode.CANCELLED)


def test_a_call_of_another_kind_is_iterated() -> None:
    assert list(fast_messages(iter([b"a", b"b"]))) == [b"a", b"b"]
