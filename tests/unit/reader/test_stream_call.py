"""A call's messages come as grpcio's own iterator gives them, however the call ends."""

import asyncio
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.endpoint import plaintext
from slackwater.reader.transport.channels import Channels
from slackwater.reader.transport.open_streams import greenlet_waits
from slackwater.reader.transport.receive_loop import (
    ReceiveLoop,
    current_loop,
    receive_loop,
    wait_aside,
)
from slackwater.reader.transport.stream_call import Call, StreamCall, status_of
from tests.support.calls import IteratedCall

CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.ABORTED)
METHOD = "/test/Stream"
# Sizes of the messages, the status after them, whether the client waits for each.
Scripted = tuple[list[int], grpc.StatusCode, bool]
Outcome = tuple[list[bytes], grpc.StatusCode, str]


class Scripts(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that sends what the script in a request says."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.sent = 0

    def service(self, handler_call_details: Any) -> Any:
        del handler_call_details
        return grpc.unary_stream_rpc_method_handler(self._send)

    def _send(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        sizes, code, is_slow = pickle.loads(request)
        if ("is-compressed", "yes") in context.invocation_metadata():
            context.set_compression(grpc.Compression.Gzip)
        for number, size in enumerate(sizes):
            if is_slow:
                time.sleep(0.002)
            self.sent += size
            yield bytes([number % 256]) * size
        if code is grpc.StatusCode.CANCELLED:
            self.goes_on.wait(240)
        elif code is not grpc.StatusCode.OK:
            context.abort(code, "as the script says")


class Server:
    """A server, and the channels to it."""

    def __init__(self, target: str, scripts: Scripts) -> None:
        self.scripts = scripts
        self.channels = Channels(plaintext(target))

    def start(self, script: Scripted) -> Call:
        """Start a call in the way of the calling thread: in its loop, or alone."""
        return self.channels.start(METHOD, pickle.dumps(script), ())

    def start_plain(self, script: Scripted) -> IteratedCall:
        """Start a call of grpcio's own."""
        call = self.channels.channel().unary_stream(METHOD)(pickle.dumps(script))
        return IteratedCall(call, call.cancel)


@contextmanager
def serving() -> Iterator[Server]:
    scripts = Scripts()
    server = grpc.server(ThreadPoolExecutor(40), handlers=(scripts,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    started = Server(f"127.0.0.1:{port}", scripts)
    yield started
    scripts.goes_on.set()
    # It waits for each event that is still to come.
    started.channels.close()
    server.stop(None)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def alone(work: Callable[[], Outcome]) -> Outcome:
    return work()


def in_a_loop(work: Callable[[], Outcome]) -> Outcome:
    outcomes: list[Outcome] = []
    with receive_loop(2) as loop:
        loop.submit(lambda: outcomes.append(work()))
    return outcomes[0]


def in_an_event_loop(work: Callable[[], Outcome]) -> Outcome:
    async def run() -> Outcome:
        return await greenlet_waits().run(work)

    # The thread keeps its loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()


WAYS = pytest.mark.parametrize("way", [alone, in_a_loop, in_an_event_loop])
Way = Callable[[Callable[[], Outcome]], Outcome]


def outcome(call: Call, bytes_max: int = 100_000) -> Outcome:
    """What came, and how it ended."""
    received: list[bytes] = []
    try:
        for portion in call.portions(bytes_max):
            received += portion
    except grpc.RpcError as error:
        return received, error.code(), error.details()
    return received, grpc.StatusCode.OK, ""


@WAYS
@settings(max_examples=60, deadline=None)
@given(
    st.tuples(
        st.lists(st.sampled_from((1, 600, 70_000)), max_size=30),
        st.sampled_from((grpc.StatusCode.OK, *CODES)),
        st.booleans(),
    ),
    st.sampled_from((0, 1_000, 100_000)),
)
def test_messages_and_status_are_those_of_grpcios_iterator(
    server: Server, way: Way, script: Scripted, bytes_max: int
) -> None:
    wanted = outcome(server.start_plain(script), bytes_max)
    assert way(lambda: outcome(server.start(script), bytes_max)) == wanted
    assert wanted[1] is script[1]


@pytest.mark.parametrize("start", [Server.start, Server.start_plain])
def test_a_portion_ends_with_enough_bytes_or_a_message_that_begins_otherwise(
    server: Server, start: Callable[[Server, Scripted], Call]
) -> None:
    script = ([600] * 5, grpc.StatusCode.OK, False)
    # The messages begin with their numbers.
    assert [len(p) for p in start(server, script).portions(10_000, b"\0")] == [2, 1, 1, 1]
    assert [len(p) for p in start(server, script).portions(600, b"\0")] == [1, 1, 1, 1, 1]
    assert len(list(start(server, script))) == 5
    large = ([100_000] * 80, grpc.StatusCode.OK, False)
    *sizes, _ = [sum(map(len, p)) for p in start(server, large).portions(1_000_000)]
    assert sizes
    assert min(sizes) >= 1_000_000


@WAYS
@pytest.mark.parametrize("count", [0, 5])
def test_another_thread_ends_a_call_that_waits(server: Server, way: Way, count: int) -> None:
    def end_in_a_moment() -> Outcome:
        call = server.start(([600] * count, grpc.StatusCode.CANCELLED, False))
        timer = threading.Timer(0.2, call.cancel)
        timer.start()
        ended = outcome(call)
        timer.join()
        assert call.waiting_since_s is None
        return ended

    received, code, _ = way(end_in_a_moment)
    assert (len(received), code) == (count, grpc.StatusCode.CANCELLED)


@WAYS
def test_another_thread_ends_calls_whose_messages_flow(server: Server, way: Way) -> None:
    seen = set()
    for number in range(60):

        def end_in_a_moment(number: int = number) -> Outcome:
            call = server.start(([600] * 300, grpc.StatusCode.OK, False))
            timer = threading.Timer(number / 5_000, call.cancel)
            timer.start()
            ended = outcome(call)
            timer.join()
            return ended

        received, code, _ = way(end_in_a_moment)
        assert received == [bytes([n % 256]) * 600 for n in range(len(received))]
        assert code is grpc.StatusCode.CANCELLED or len(received) == 300
        seen.add(code)
    assert grpc.StatusCode.CANCELLED in seen


@WAYS
def test_a_call_that_was_ended_before_it_was_read_says_so(server: Server, way: Way) -> None:
    def end_at_once() -> Outcome:
        call = server.start(([600] * 5, grpc.StatusCode.OK, False))
        call.close()
        return outcome(call)

    received, code, _ = way(end_at_once)
    # The first one may have come already.
    assert len(received) <= 1
    assert code is grpc.StatusCode.CANCELLED


def test_a_call_that_nobody_reads_to_its_end_keeps_no_channel_open(server: Server) -> None:
    def read_one() -> None:
        call = server.start(([600] * 5, grpc.StatusCode.CANCELLED, False))
        next(call.portions(0))
        call.close()

    read_one()
    with receive_loop(1) as loop:
        loop.submit(read_one)


def test_works_of_a_loop_go_on_while_others_wait(server: Server) -> None:
    """Each ends the wait of the one before it, and they are more than there may be at once."""
    waiting: list[Call] = []
    ended = list[Outcome]()

    def read(number: int) -> None:
        if number % 3 == 2:
            wait_aside(lambda: waiting.pop().cancel())
            return
        assert current_loop() is not None
        is_silent = number % 3 == 1
        code = grpc.StatusCode.CANCELLED if is_silent else grpc.StatusCode.OK
        call = server.start(([600] * 20, code, True))
        if is_silent:
            waiting.append(call)
        ended.append(outcome(call))

    with receive_loop(3) as loop:
        for number in range(30):
            loop.submit(read, number)
    assert [len(messages) for messages, *_ in ended].count(20) >= 10
    assert len(ended) == 20


def test_little_is_held_for_a_work_that_does_something_else(server: Server) -> None:
    def wait_until_the_server_waits() -> None:
        before = -1
        while before != server.scripts.sent:
            before = server.scripts.sent
            time.sleep(0.5)

    def read() -> None:
        before = server.scripts.sent
        call = server.start(([16_000] * 5_000, grpc.StatusCode.OK, False))
        messages = iter(call)
        next(messages)
        wait_aside(wait_until_the_server_waits)
        assert server.scripts.sent - before < 40_000_000
        assert sum(1 for _ in messages) == 4_999

    with receive_loop(2) as loop:
        loop.submit(read)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (
            (0, "", 200, [b"grpc-status: 5\r\n", b"grpc-message: no%20such\r\n"]),
            "NOT_FOUND: no such",
        ),
        # As of a stream that the server resets after its trailers.
        ((92, "HTTP/2 stream 1 reset", 200, [b"grpc-status: 0\r\n"]), "OK: "),
        ((92, "HTTP/2 stream 1 was not closed cleanly: X (err 8)", 200, []), "CANCELLED: HTTP/2"),
        ((92, "HTTP/2 stream 1 was not closed cleanly: X (err 2)", 200, []), "INTERNAL: HTTP/2"),
        ((7, "Failed to connect", 0, []), "UNAVAILABLE: Failed"),
        ((28, "Operation timed out", 200, []), "DEADLINE_EXCEEDED: Operation"),
        ((42, "", 200, []), "CANCELLED: "),
        ((0, "", 403, []), "PERMISSION_DENIED: the server answered with HTTP 403"),
        ((0, "", 503, []), "UNAVAILABLE: the server"),
        ((0, "", 418, []), "UNKNOWN: the server"),
        ((0, "", 200, [b"content-type: text/html\r\n"]), "UNKNOWN: the server answered without"),
        ((0, "", 200, [b"grpc-status: 99\r\n"]), "UNKNOWN: "),
    ],
)
def test_an_ending_is_a_status_of_grpcs(
    ending: tuple[int, str, int, list[bytes]], status: str
) -> None:
    code, details = status_of(*ending)
    assert f"{code.name}: {details}".startswith(status)


def test_what_a_work_raises_is_raised_at_the_end_of_its_loop(server: Server) -> None:
    def fail() -> None:
        outcome(server.start(([600], grpc.StatusCode.OK, False)))
        wait_aside(lambda: int("x"))

    with pytest.raises(ValueError, match="invalid literal"), receive_loop(2) as loop:
        loop.submit(fail)


def test_calls_to_several_servers_are_of_one_loop(server: Server) -> None:
    with serving() as other, receive_loop(1) as loop:

        def read_both() -> None:
            call = server.start(([600] * 3, grpc.StatusCode.OK, True))
            assert len(outcome(other.start(([600] * 2, grpc.StatusCode.OK, True)))[0]) == 2
            assert len(outcome(call)[0]) == 3

        loop.submit(read_both)


def test_what_fails_in_the_loop_itself_is_raised_in_its_works(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("of the loop")

    monkeypatch.setattr(StreamCall, "notice", fail)
    raised, both_wait = list[BaseException](), threading.Barrier(2)

    def read() -> None:
        try:
            wait_aside(both_wait.wait)
            outcome(server.start(([600], grpc.StatusCode.CANCELLED, False)))
        except ValueError as error:
            raised.append(error)

    def read_two() -> None:
        with receive_loop(2) as loop:
            loop.submit(read)
            loop.submit(read)

    with pytest.raises(ValueError, match="of the loop"):
        read_two()
    assert len(raised) == 2


def test_channels_are_closed_while_a_work_asks_for_one() -> None:
    with serving() as server, receive_loop(1) as loop:
        is_waiting = threading.Event()

        def read() -> None:
            call = server.start(([], grpc.StatusCode.CANCELLED, False))
            is_waiting.set()
            assert outcome(call)[1] is grpc.StatusCode.CANCELLED
            server.channels.channel()

        loop.submit(read)
        assert is_waiting.wait(240)
        server.channels.close()


def test_a_call_can_be_closed_after_a_signal(server: Server) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    call = server.start(([600], grpc.StatusCode.CANCELLED, False))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            outcome(call)
        call.close()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_loop_whose_end_is_interrupted_goes_on_alone(server: Server) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    outcomes, calls, ended = list[Outcome](), list[Call](), threading.Event()
    loops = list[ReceiveLoop]()
    before = signal.signal(signal.SIGUSR1, interrupt)

    def interrupt_its_end() -> None:
        while not (loops and loops[0]._is_closed):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    def read() -> None:
        calls.append(server.start(([600] * 5, grpc.StatusCode.CANCELLED, False)))
        wait_aside(interrupt_its_end)
        outcomes.append(outcome(calls[0]))
        ended.set()

    def read_in_a_loop() -> None:
        with receive_loop(1) as loop:
            loops.append(loop)
            loop.submit(read)

    try:
        with pytest.raises(KeyboardInterrupt):
            read_in_a_loop()
    finally:
        signal.signal(signal.SIGUSR1, before)
    # It does not get the connections of the loop, which still uses them.
    assert len(alone(lambda: outcome(server.start(([1], grpc.StatusCode.OK, False))))[0]) == 1
    calls[0].cancel()
    assert ended.wait(240)
    assert [code for _, code, _ in outcomes] == [grpc.StatusCode.CANCELLED]


@WAYS
@pytest.mark.parametrize("code", [grpc.StatusCode.OK, grpc.StatusCode.CANCELLED])
def test_a_compressed_message_is_not_taken_for_another(
    server: Server, way: Way, code: grpc.StatusCode
) -> None:
    def read() -> Outcome:
        script, metadata = pickle.dumps(([600], code, False)), (("is-compressed", "yes"),)
        return outcome(server.channels.start(METHOD, script, metadata))

    assert way(read)[:2] == ([], grpc.StatusCode.INTERNAL)


FORKING = """
import os, pickle, sys
import grpc
from slackwater.endpoint import plaintext
from slackwater.reader.transport.channels import Channels

script = pickle.dumps(([600] * 300, grpc.StatusCode.OK, True))
messages = iter(Channels(plaintext(sys.argv[1])).start("/test/Stream", script, ()))
next(messages)
if child := os.fork():
    os.waitpid(child, 0)
    print(sum(1 for _ in messages))
"""


def test_a_child_that_ends_leaves_its_parents_call_alone(server: Server) -> None:
    command = [sys.executable, "-c", FORKING, server.channels._target]
    assert subprocess.check_output(command, text=True) == "299\n"


FREEZING = """
import gc, pickle, sys
import grpc
from slackwater.endpoint import plaintext
from slackwater.reader.transport.channels import Channels
from slackwater.reader.transport.receive_loop import receive_loop

channels, read = Channels(plaintext(sys.argv[1])), []
script = pickle.dumps(([600] * 3, grpc.StatusCode.OK, False))
for _ in range(100):
    with receive_loop(1) as loop:
        loop.submit(lambda: read.extend(channels.start("/test/Stream", script, ())))
        gc.freeze()
print(len(read))
"""


def test_loops_that_no_collection_sees_end_without_a_trace(server: Server) -> None:
    # Spark's workers freeze what is left after a task: a call's handle has its loop still.
    command = [sys.executable, "-c", FREEZING, server.channels._target]
    assert subprocess.check_output(command, text=True, timeout=240) == "300\n"


class Relay:
    """A way to a server that can be lost without a word.

    Attributes:
        target: HOST:PORT to connect to.
        connections: how many there were.
        lost: on so many of them, the first ones, nothing passes.
    """

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            ends = self._listener.accept()[0], socket.create_connection(self._server)
            self.connections += 1
            for one, other in (ends, ends[::-1]):
                threading.Thread(
                    target=self._pass_on, args=(one, other, self.connections), daemon=True
                ).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, number: int) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                if number > self.lost:
                    other.sendall(data)
        other.close()


@WAYS
def test_after_a_silence_the_next_call_has_another_connection(server: Server, way: Way) -> None:
    relay = Relay(server.channels._target)
    behind = Server(relay.target, server.scripts)

    def read(*, seconds_max: float | None = None) -> Outcome:
        script = pickle.dumps(([600] * 5, grpc.StatusCode.OK, False))
        return outcome(behind.channels.start(METHOD, script, (), seconds_max))

    def read_past_silences() -> Outcome:
        assert len(read()[0]) == 5
        relay.lost = relay.connections
        call = behind.start(([600] * 5, grpc.StatusCode.OK, False))
        timer = threading.Timer(0.5, call.cancel)
        timer.start()
        assert outcome(call)[1] is grpc.StatusCode.CANCELLED
        timer.join()
        assert len(read(seconds_max=240)[0]) == 5
        relay.lost = relay.connections
        assert read(seconds_max=0.5)[1] is grpc.StatusCode.DEADLINE_EXCEEDED
        return read(seconds_max=240)

    assert len(way(read_past_silences)[0]) == 5


def test_a_call_that_is_forgotten_ends_without_a_word(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    call = server.start(([600], grpc.StatusCode.CANCELLED, False))
    assert next(call.portions(0))
    del call
    gc.collect()
    assert len(outcome(server.start(([600], grpc.StatusCode.OK, False)))[0]) == 1
    assert not raised


@WAYS
def test_a_message_is_used_before_the_next_one_has_come(server: Server, way: Way) -> None:
    def read() -> Outcome:
        call = server.start(([600], grpc.StatusCode.CANCELLED, False))
        first = next(iter(call))
        call.close()
        return [first], grpc.StatusCode.OK, ""

    assert way(read)[0] == [bytes(600)]


def test_a_call_that_begins_to_wait_late_has_not_waited_for_less_than_nothing(
    server: Server,
) -> None:
    silence_s = list[float]()

    def wait() -> None:
        call = server.start(([], grpc.StatusCode.CANCELLED, False))
        time.sleep(0.6)

        def look() -> None:
            while not silence_s:
                if (since_s := call.waiting_since_s) is not None:
                    silence_s.append(time.monotonic() - since_s)
            call.cancel()

        threading.Thread(target=look).start()
        outcome(call)

    with receive_loop(1) as loop:
        loop.submit(wait)
    assert silence_s[0] >= 0


def test_only_the_time_in_which_a_loop_looks_is_the_servers_silence(server: Server) -> None:
    silence_s = list[float]()

    def wait() -> None:
        began_s = time.monotonic()
        call = server.start(([], grpc.StatusCode.CANCELLED, False))

        def look() -> None:
            while not silence_s or silence_s[-1] < 0.6:
                if (since_s := call.waiting_since_s) is not None:
                    silence_s.append(time.monotonic() - since_s)
                    busy_s = 0.4 * len(blocked)
                    assert silence_s[-1] <= time.monotonic() - began_s - busy_s + 0.01
                time.sleep(0.01)
            call.cancel()

        looking = threading.Thread(target=look)
        looking.start()
        outcome(call)
        looking.join()

    blocked = list[int]()

    def block() -> None:
        for number in range(5):
            wait_aside(lambda: time.sleep(0.2))
            time.sleep(0.4)
            blocked.append(number)

    with receive_loop(2) as loop:
        loop.submit(wait)
        loop.submit(block)
    assert silence_s[-1] >= 0.6
