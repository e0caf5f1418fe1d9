"""The synthetic server: Spanner's protocol over a script.

It answers what a reader of change streams asks: sessions, the clock, the information schema, the
change stream's functions, and reads of a table, whole or in parts. What a query may hold and how it
ends is as on the emulator; the test tests/emulator/test_synthetic.py asks both the same.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from google.cloud.spanner_v1.types import (
    BatchCreateSessionsRequest,
    BatchCreateSessionsResponse,
    CreateSessionRequest,
    ExecuteSqlRequest,
    Partition,
    PartitionQueryRequest,
    PartitionResponse,
    ResultSet,
    Session,
    Transaction,
    TypeCode,
)

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    HeartbeatRecord,
    PartitionStartRecord,
)
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.support.spanner_messages import (
    PartialResultSetPb,
    value,
)
from tests.synthetic.grpc_over_h2 import AbortError, GrpcServer, Ready, Unary, in_a_process
from tests.synthetic.rows import row_of
from tests.synthetic.schema import COLUMN_NAMES, columns_in, metadata_of
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.table import NAME

CHANGE_STREAM: Final = "Synthetic"
# Records that are made at a time; what is sent from them are messages of the script's size.
_BLOCK: Final = 8_192
_QUERY_MAX_US: Final = 30 * 60 * 1_000_000
_ARGUMENT: Final = re.compile(r"(\w+)\s*=>\s*@(\w+)|[@$](\w+)")
_READ_FUNCTION: Final = re.compile(
    rf"(?:READ|read_json|read_proto_bytes)_{CHANGE_STREAM}(?:_(\w+))?"
)
_FROM_TABLE: Final = re.compile(rf'FROM [`"]?{NAME}\b')
_QUOTED: Final = re.compile(r'[`"](\w+)[`"]')
_NAMES: Final = ("start_timestamp", "end_timestamp", "partition_token", "heartbeat_milliseconds")


@dataclass(frozen=True, slots=True)
class _Query:
    start_ns: int
    # A record lies at a whole microsecond: the first one at or after the start.
    start_us: int
    end_us: int | None
    token: str | None
    heartbeat_us: int
    function: str


class SyntheticSpanner(GrpcServer):
    """`with SyntheticSpanner(script) as server: ... server.host`.

    Args:
        script: of any database that is asked for; or the script of each, by the database's name.
        counts: partition queries and their answers' bytes are added to its two numbers.
    """

    def __init__(
        self, script: Script | Mapping[str, Script], counts: Sequence[int] | None = None
    ) -> None:
        self._counts: Any = counts
        if isinstance(script, Script):
            one = _Database(script)
            self._databases: Mapping[str, _Database] = defaultdict(lambda: one)
        else:
            self._databases = {name: _Database(its) for name, its in script.items()}
        unary: dict[str, Unary] = {
            "CreateSession": self.create_session,
            "BatchCreateSessions": self.create_sessions,
            "ExecuteSql": self.execute,
            "DeleteSession": lambda request: b"",
            "BeginTransaction": lambda request: bytes(Transaction.serialize(Transaction(id=b"t"))),
            "PartitionQuery": self.divide,
        }
        super().__init__(unary, {"ExecuteStreamingSql": self.stream})

    def create_session(self, request: bytes) -> bytes:
        """Create one multiplexed session, or one of a pool."""
        asked = CreateSessionRequest.deserialize(request)
        name = f"{asked.database}/sessions/one"
        session = Session(name=name, multiplexed=asked.session.multiplexed)
        return bytes(Session.serialize(session))

    def create_sessions(self, request: bytes) -> bytes:
        """Create as many sessions as a client's pool requests."""
        asked = BatchCreateSessionsRequest.deserialize(request)
        count = asked.session_count
        sessions = [Session(name=f"{asked.database}/sessions/{i}") for i in range(count)]
        response = BatchCreateSessionsResponse(session=sessions)
        return bytes(BatchCreateSessionsResponse.serialize(response))

    def execute(self, request: bytes) -> bytes:
        """The clock and the information schema."""
        asked = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request))
        return self._database(asked).execute(asked)

    def divide(self, request: bytes) -> bytes:
        """Divide a read of the table into its parts."""
        parts = self._database(PartitionQueryRequest.deserialize(request)).parts()
        tokens = [Partition(partition_token=b"%d" % part) for part in range(parts)]
        return bytes(PartitionResponse.serialize(PartitionResponse(partitions=tokens)))

    def stream(self, request: bytes) -> Iterator[Ready]:
        """Answer a change stream query, or one of the other statements."""
        asked = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request))
        answer = self._database(asked).stream(asked)
        return answer if self._counts is None else self._counted(asked, answer)

    def _counted(self, asked: Any, answer: Iterator[Ready]) -> Iterator[Ready]:
        if CHANGE_STREAM in asked.sql:
            self._counts[0] += 1
        for ready in answer:
            if not isinstance(ready, int):
                self._counts[1] += sum(map(len, ready))
            yield ready

    def _database(self, asked: Any) -> "_Database":
        return self._databases[asked.session.split("/")[5]]


class _Database:
    """Answers to the statements on one database."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._row = row_of(script.dialect, script.mode)
        self._metadata = PartialResultSetPb(metadata=metadata_of(script)).SerializeToString()

    def execute(self, asked: Any) -> bytes:
        """The clock and the information schema."""
        answer = ResultSet.pb(ResultSet())
        now_ns = time.time_ns() // 1_000 * 1_000
        answer.metadata.transaction.read_timestamp.FromNanoseconds(now_ns)
        names, rows = self._table(asked.sql)
        _name_columns(answer.metadata, names)
        for row in rows:
            answer.rows.add().values.extend(map(value, row))
        return bytes(answer.SerializeToString())

    def stream(self, asked: Any) -> Iterator[Ready]:
        """Answer a change stream query, or one of the other statements."""
        if CHANGE_STREAM not in asked.sql:
            yield from self._others(asked)
            return
        query = _parse(asked)
        self._require_valid(asked.sql, query)
        script = self._script
        earliest_us = max(script.retention_start_us, script.begins_us[query.function])
        if query.start_ns < earliest_us * 1_000:
            earliest = format_rfc3339(earliest_us * 1_000)
            raise AbortError(
                grpc.StatusCode.OUT_OF_RANGE,
                "Specified start_timestamp is too far in the past. Please specify a"
                f" start_timestamp within the earliest read timestamp: {earliest}.",
            )
        if query.token is None:
            yield from self._messages(iter([self._announced(query.start_ns, query.function)]))
            return
        partition = script.by_key.get((query.function, query.token))
        if partition is None:
            said = "Invalid partition token."
            if any(p.token == query.token for p in script.partitions):
                said = f"Partition token {query.token} does not belong to the placement TVF."
            raise AbortError(grpc.StatusCode.INVALID_ARGUMENT, said)
        is_before = query.start_us < partition.start_us
        if is_before or (partition.end_us is not None and query.start_us > partition.end_us):
            raise AbortError(
                grpc.StatusCode.OUT_OF_RANGE,
                "Specified start_timestamp is invalid for the partition.",
            )
        yield from self._messages(self._values(partition, query))

    def _require_valid(self, sql: str, query: _Query) -> None:
        """Refuse what the function of the stream's partition mode does not take.

        The bound of end_timestamp is the emulator's; the texts are ours.
        """
        function = _READ_FUNCTION.search(sql)
        if function is None or function[0] not in self._functions():
            raise AbortError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"Table-valued function not found: {function and function[0]}",
            )
        if self._script.is_mutable and (
            query.end_us is None or query.end_us - query.start_us > _QUERY_MAX_US
        ):
            raise AbortError(
                grpc.StatusCode.INVALID_ARGUMENT,
                "Specified end_timestamp must be at most 30 minutes after start_timestamp.",
            )

    def _messages(self, blocks: Iterator[Ready]) -> Iterator[Ready]:
        """Messages of the script's size; the first one holds the metadata."""
        head = self._metadata
        size = self._script.rows_per_message
        for block in blocks:
            if isinstance(block, int):
                yield block
                continue
            messages = [b"".join(block[i : i + size]) for i in range(0, len(block), size)]
            if messages:
                messages[0] = head + messages[0]
                head = b""
                yield messages
        if head:
            yield [head]

    def _values(self, partition: ScriptedPartition, query: _Query) -> Iterator[Ready]:
        """Blocks of serialized values, and the times to wait for."""
        rows = partition.rows
        last_us = min((t for t in (query.end_us, partition.end_us) if t is not None), default=None)
        position = rows.first_at(query.start_us)
        through = len(rows) if last_us is None else rows.first_at(last_us + 1)
        if partition.end_us is not None and not self._script.is_mutable:
            # There a partition covers its end, where its end record lies.
            through = min(through, rows.first_at(partition.end_us))
        shown_us = query.start_us
        while position < through:
            for beat_us in self._beats(shown_us, rows.time_us(position), query.heartbeat_us):
                yield beat_us
                shown_us = beat_us
                yield [self._encode(HeartbeatRecord(beat_us * 1_000))]
            yield rows.time_us(position) + self._script.linger_us
            ready = min(through, position + _BLOCK, rows.first_at(_now_us() + 1))
            yield list(rows.encoded(position, ready))
            shown_us = rows.time_us(ready - 1)
            position = ready
        while last_us is None or _now_us() < last_us:
            beat_us = shown_us + query.heartbeat_us
            if last_us is not None and beat_us > last_us:
                yield last_us
                break
            yield beat_us
            shown_us = beat_us
            yield [self._encode(HeartbeatRecord(beat_us * 1_000))]
        if partition.end_us is not None and last_us == partition.end_us:
            children = self._script.children.get(partition.token, ())
            yield [self._encode(child_record(child)) for child in children]

    def _beats(self, shown_us: int, next_us: int, heartbeat_us: int) -> Iterable[int]:
        """Return the times of heartbeats until the next record, if it lies in the future."""
        return range(shown_us + heartbeat_us, next_us, heartbeat_us) if next_us > _now_us() else ()

    def _announced(self, at_ns: int, function: str) -> list[bytes]:
        """Answer a query with a NULL token."""
        alive = [partition.token for partition in self._script.alive(at_ns // 1_000, function)]
        if self._script.is_mutable:
            return [
                self._encode(PartitionStartRecord(at_ns, f"{i:08}", (token,)))
                for i, token in enumerate(alive)
            ]
        return [
            self._encode(
                ChildPartitionsRecord(at_ns, f"{i:08}", (ChildPartition(token, frozenset()),))
            )
            for i, token in enumerate(alive)
        ]

    def _encode(self, record: ChangeRecord) -> bytes:
        return bytes(PartialResultSetPb(values=[self._row(record)]).SerializeToString())

    def _functions(self) -> list[str]:
        """The names of the read functions that exist now."""
        script = self._script
        prefix = "READ"
        if script.dialect is Dialect.POSTGRESQL:
            prefix = "read_proto_bytes" if script.is_mutable else "read_json"
        own = f"{prefix}_{CHANGE_STREAM}"
        return [f"{own}_{f}" if f else own for f in script.functions(_now_us())]

    def _table(self, sql: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The names of an answer's columns, and its rows."""
        script, asked = self._script, sql.lower()
        if "database_options" in asked:
            return ["option_value"], [[script.dialect.value]]
        if "information_schema.columns" in asked:
            return COLUMN_NAMES, columns_in(script)
        if "all" in _QUOTED.findall(asked):
            # It watches the whole database.
            return ["change_stream_name", "all"], [[CHANGE_STREAM, "YES"]]
        if "change_streams" in asked:
            options = {
                "retention_period": "7d",
                "partition_mode": script.mode.value,
                "value_capture_type": script.value_capture_type,
            }
            if script.is_per_placement:
                options["per_placement_tvf"] = "true"
            names = ("change_stream_name", "option_name", "option_value")
            return names, [(CHANGE_STREAM, *option) for option in options.items()]
        if "change_stream_options" in asked:
            return ["option_value"], [[script.mode.value]]
        if "routines" in asked:
            return ["routine_name"], [[name] for name in self._functions()]
        if "placements" in asked:
            functions = script.functions(_now_us()) if script.is_per_placement else []
            defaults = {"": "YES", "default": "YES"}
            rows = [[f or "default", defaults.get(f, "NO")] for f in functions]
            return ["placement_name", "is_default"], rows
        return ["one"], [["1"]]

    def parts(self) -> int:
        """Return into how many parts the table is divided."""
        return 0 if self._script.table is None else self._script.table.parts

    def _others(self, asked: Any) -> Iterator[Ready]:
        table = self._script.table
        if table is not None and _FROM_TABLE.search(asked.sql):
            yield from table.messages(int(asked.partition_token) if asked.partition_token else None)
        else:
            yield [self._other(asked.sql)]

    def _other(self, sql: str) -> bytes:
        message = PartialResultSetPb()
        names, rows = self._table(sql)
        _name_columns(message.metadata, names)
        for row in rows:
            message.values.extend(map(value, row))
        return bytes(message.SerializeToString())


def _name_columns(metadata: Any, names: Iterable[str]) -> None:
    for name in names:
        metadata.row_type.fields.add(name=name).type_.code = TypeCode.STRING


def child_record(child: ScriptedPartition) -> ChildPartitionsRecord:
    """Return the record by which its parents announce a partition."""
    partition = ChildPartition(child.token, frozenset(child.parents))
    return ChildPartitionsRecord(child.start_us * 1_000, "00000001", (partition,))


def _now_us() -> int:
    return time.time_ns() // 1_000


def _parse(asked: Any) -> _Query:
    """The arguments by name or by position, whatever a client calls its parameters."""
    function = _READ_FUNCTION.search(asked.sql)
    inside = asked.sql[asked.sql.index("(") + 1 :]
    parameters: dict[str, str] = {}
    for position, match in enumerate(_ARGUMENT.finditer(inside)):
        name, parameter, bare = match.groups()
        parameter = parameter or (bare if "@" in asked.sql else f"p{bare}")
        if position < len(_NAMES):
            value = asked.params.fields[parameter].string_value
            parameters[name or _NAMES[position]] = value
    start_ns, end = parse_rfc3339(parameters["start_timestamp"]), parameters["end_timestamp"]
    return _Query(
        start_ns,
        -(-start_ns // 1_000),
        parse_rfc3339(end) // 1_000 if end else None,
        parameters["partition_token"] or None,
        int(parameters["heartbeat_milliseconds"]) * 1_000,
        (function and function[1]) or "",
    )


def synthetic_process(
    script: Script | Mapping[str, Script], counts: Any | None = None
) -> AbstractContextManager[str]:
    """The server in a process of its own, so that its work is on nobody's bill; its host.

    Args:
        script: as of SyntheticSpanner.
        counts: likewise, an array that processes share.
    """
    return in_a_process(partial(SyntheticSpanner, script, counts))
