"""A gRPC proxy in front of a Spanner that injects faults by a seeded script.

It passes bytes through, repeats nothing and changes nothing but what its rules say. What happens
to a query follows from the seed, the query's partition token and how many queries that token has
had, so a run can be repeated though its threads interleave otherwise.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.cloud.spanner_v1.types import ExecuteSqlRequest

from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.records import ChangeRecord, ChildPartitionsRecord
from slackwater.timestamp import parse_rfc3339
from tests.faults.schema_rules import (
    TOO_STALE,
    Options,
    Versions,
    is_of_old_version,
    with_options,
)
from tests.faults.statuses import Status, any_status
from tests.support.spanner_messages import googlesql_row, messages, postgresql_row

STREAMING: Final = "/google.spanner.v1.Spanner/ExecuteStreamingSql"
EXECUTE: Final = "/google.spanner.v1.Spanner/ExecuteSql"
_THREADS: Final = 64
_HELD_S_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Asked:
    """A partition query; token None asks for the partitions alive."""

    token: str | None
    start_ns: int
    end_ns: int | None
    is_postgresql: bool


@dataclass(frozen=True, slots=True)
class Breaks:
    """Calls and queries that fail with any status.

    Attributes:
        likely: how likely a query fails.
        messages_max: after how many of its messages at most.
        unary_likely: how likely any other call fails.
        refusals: how many of the failures, of 1, fail the epoch.
    """

    likely: float
    messages_max: int = 3
    unary_likely: float = 0.0
    refusals: float = 0.0


@dataclass(frozen=True, slots=True)
class FailsOnce:
    """The partition query of a number, counted from 0, fails before its first message."""

    number: int
    status: Status


@dataclass(frozen=True, slots=True)
class Refuses:
    """Every call and query is refused with one status, or every call of one method."""

    code: grpc.StatusCode
    method: str | None = None


@dataclass(frozen=True, slots=True)
class Freezes:
    """Nothing is answered and nothing is refused, as long as this rule is there."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Queries that answer late."""

    likely: float
    seconds: float = 0.05


@dataclass(frozen=True, slots=True)
class Stalls:
    """Queries that go silent without being closed, each token at most so often."""

    likely: float = 1.0
    times: int = 1
    messages_max: int = 2
    tokens: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class HideEnds:
    """The case of apache/beam issue 40232: a query ends with OK just after its partition's end.

    The child partitions record is kept back where the query's end_timestamp lies at most margin_ns
    after the partition's end, for each token so often.
    """

    margin_ns: int
    times: int = 1


Rule = Breaks | FailsOnce | Refuses | Freezes | Options | Versions | Delays | Stalls | HideEnds


@dataclass(frozen=True, slots=True)
class Script:
    """The fate of one query: its delay, and at most one fault."""

    delay_s: float = 0.0
    fail_with: Status | None = None
    stall: bool = False
    after_messages: int = 0


def script(
    rules: Sequence[Rule], asked: Asked, choose: random.Random, stalled_before: int, number: int
) -> Script:
    """Choose what the rules do to a query: at most one fault.

    Args:
        rules: the proxy's.
        asked: the query.
        choose: the query's choices.
        stalled_before: how often a query of the same token stalled.
        number: how many queries came before.
    """
    delay_s = 0.0
    for rule in rules:
        match rule:
            case Delays() if choose.random() < rule.likely:
                delay_s = rule.seconds
            case Breaks() if choose.random() < rule.likely:
                status = any_status(choose, rule.refusals)
                return Script(delay_s, status, False, choose.randint(0, rule.messages_max))
            case FailsOnce() if rule.number == number:
                return Script(delay_s, rule.status)
            case Stalls() if stalled_before < rule.times and choose.random() < rule.likely:
                if rule.tokens is None or asked.token in rule.tokens:
                    return Script(delay_s, None, True, choose.randint(0, rule.messages_max))
    return Script(delay_s)


def parse(request: bytes) -> Asked | None:
    """The partition query that a request holds, None where it is another statement."""
    asked = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request))
    is_postgresql = "read_json_" in asked.sql or "read_proto_bytes_" in asked.sql
    if not (is_postgresql or "READ_" in asked.sql):
        return None
    names = ("p1", "p2", "p3") if is_postgresql else ("start_timestamp", "end_timestamp", "")
    token = asked.params.fields[names[2] or "partition_token"].string_value
    end = asked.params.fields[names[1]].string_value
    return Asked(
        token or None,
        parse_rfc3339(asked.params.fields[names[0]].string_value),
        parse_rfc3339(end) if end else None,
        is_postgresql,
    )


class FaultProxy:
    """The running proxy: `with FaultProxy(host, rules, seed=1) as proxy: ... proxy.host`.

    Args:
        target: host and port of the server behind it.
        rules: what it does; none passes everything.
        seed: of all choices.
    """

    def __init__(self, target: str, rules: Sequence[Rule] = (), *, seed: int = 0) -> None:
        self.rules = list(rules)
        self.injected: Counter[str] = Counter()
        self._seed = seed
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._queries = 0
        self._stalled: Counter[str] = Counter()
        self._hidden: Counter[str] = Counter()
        self._closed = threading.Event()
        self._channel = grpc.insecure_channel(target, options=_UNBOUNDED)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS), options=[*_UNBOUNDED, ("grpc.so_reuseport", 0)]
        )
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.host = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "FaultProxy":
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._server.stop(None).wait()
        self._channel.close()

    def unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Pass a call on, or fail it."""
        self._freeze(context)
        self._refuse(context, method)
        choose = self._choose(method)
        for rule in self.rules:
            if isinstance(rule, Breaks) and choose.random() < rule.unary_likely:
                self._abort(
                    context, any_status(choose, rule.refusals), f" of {method.split('/')[-1]}"
                )
        if method == EXECUTE and is_of_old_version(self.rules, request):
            self._count("version")
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, TOO_STALE)
        call = self._channel.unary_unary(method)
        try:
            answer = bytes(call(request, metadata=_metadata(context), timeout=60))
            return with_options(self.rules, request, answer) if method == EXECUTE else answer
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
            raise AssertionError("abort raises") from error

    def stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Pass a query's messages on, as the rules have it."""
        self._freeze(context)
        self._refuse(context, STREAMING)
        asked = parse(request)
        act = Script()
        if asked is not None:
            key = str(asked.token)
            choose = self._choose(key)
            with self._lock:
                act = script(self.rules, asked, choose, self._stalled[key], self._queries)
                self._stalled[key] += act.stall
                self._queries += 1
        if act.delay_s:
            self._count("delay")
            time.sleep(act.delay_s)
        call = self._channel.unary_stream(STREAMING)(request, metadata=_metadata(context))
        context.add_callback(call.cancel)
        try:
            for number, message in enumerate(self._messages(call, asked)):
                if number == act.after_messages:
                    self._interrupt(act, context)
                self._freeze(context)
                yield message
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        self._interrupt(act, context)

    def _messages(self, call: Any, asked: Asked | None) -> Iterator[bytes]:
        hides = [rule for rule in self.rules if isinstance(rule, HideEnds)]
        if asked is None or asked.token is None or asked.end_ns is None or not hides:
            return iter(call)
        return self._without_end(list(call), asked, hides[0])

    def _without_end(self, whole: list[bytes], asked: Asked, rule: HideEnds) -> Iterator[bytes]:
        decoder = ChangeRecordDecoder()
        records: list[ChangeRecord] = [r for message in whole for r in decoder.feed(message)]
        ends = [r.start_timestamp_ns for r in records if isinstance(r, ChildPartitionsRecord)]
        key = str(asked.token)
        with self._lock:
            is_hidden = (
                bool(ends)
                and asked.start_ns < ends[0]
                and (asked.end_ns or 0) - ends[0] <= rule.margin_ns
                and self._hidden[key] < rule.times
            )
            self._hidden[key] += is_hidden
        if not is_hidden:
            return iter(whole)
        self._count("hidden end")
        row = postgresql_row if asked.is_postgresql else googlesql_row
        rows = [row(r) for r in records if not isinstance(r, ChildPartitionsRecord)]
        return iter(messages(rows, is_postgresql=asked.is_postgresql))

    def _interrupt(self, act: Script, context: grpc.ServicerContext) -> None:
        if act.fail_with is not None:
            self._abort(context, act.fail_with)
        if act.stall:
            self._count("stall")
            gone = threading.Event()
            if context.add_callback(gone.set):
                until = time.monotonic() + _HELD_S_MAX
                while time.monotonic() < until and not (gone.wait(0.1) or self._closed.is_set()):
                    pass
            context.abort(grpc.StatusCode.CANCELLED, "the stalled query was given up")

    def _freeze(self, context: grpc.ServicerContext) -> None:
        if any(isinstance(rule, Freezes) for rule in self.rules):
            self._count("freeze")
        while any(isinstance(rule, Freezes) for rule in self.rules):
            if self._closed.wait(0.05) or not context.is_active():
                context.abort(grpc.StatusCode.CANCELLED, "given up while frozen")

    def _refuse(self, context: grpc.ServicerContext, method: str) -> None:
        for rule in self.rules:
            if isinstance(rule, Refuses) and rule.method in (None, method):
                self._count(rule.code.name)
                context.abort(rule.code, "refused by the test")

    def _abort(self, context: grpc.ServicerContext, status: Status, call: str = "") -> None:
        self._count(f"{status.kind}{call}")
        context.abort(status.code, status.message)

    def _choose(self, key: str) -> random.Random:
        with self._lock:
            self._asked[key] += 1
            return random.Random(f"{self._seed} {key} {self._asked[key]}")

    def _count(self, kind: str) -> None:
        with self._lock:
            self.injected[kind] += 1


_UNBOUNDED: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


def _metadata(context: grpc.ServicerContext) -> list[tuple[str, str]]:
    return [
        (key, value)
        for key, value in context.invocation_metadata()
        if not key.startswith(("grpc-", "user-agent", ":"))
    ]


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        if details.method == STREAMING:
            return grpc.unary_stream_rpc_method_handler(self._proxy.stream)
        call: Callable[..., bytes] = lambda request, context: self._proxy.unary(  # noqa: E731
            details.method, request, context
        )
        return grpc.unary_unary_rpc_method_handler(call)
