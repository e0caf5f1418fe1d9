"""The truth, read by a plain client that follows a change stream from a start to an end.

It shares no code with the reader and the scheduler, so a mistake in them shows when the two are
compared. It holds everything in memory and can't be resumed: it is for tests, not for use.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_v1 import TypeCode, param_types

_THREADS: Final = 8
_HEARTBEAT_MS: Final = 10_000


class TruthRecord(NamedTuple):
    """A data change record in comparable form; its mods are canonical JSON texts."""

    commit_timestamp: str
    server_transaction_id: str
    record_sequence: str
    table_name: str
    mods: tuple[tuple[str, str, str], ...]
    mod_type: str


@dataclass(frozen=True, slots=True)
class TruthPartition:
    """A partition, as its parents' child partitions record announced it."""

    token: str
    start_timestamp: str
    parents: frozenset[str]


@dataclass(frozen=True, slots=True)
class Truth:
    """All records and partitions of a change stream between two times."""

    records: list[TruthRecord]
    partitions: list[TruthPartition]


def read_truth(
    *,
    project: str,
    instance: str,
    database: str,
    change_stream: str,
    is_postgresql: bool,
    start: str,
    end: str,
) -> Truth:
    """Follow every partition from start to end: RFC 3339 times with Z, both inclusive.

    Works on the emulator only: SPANNER_EMULATOR_HOST must be set.
    """
    client = spanner.Client(project=project, credentials=AnonymousCredentials())
    follower = _Follower(
        client.instance(instance).database(database), change_stream, is_postgresql, end
    )
    with ThreadPoolExecutor(_THREADS) as pool:
        return follower.follow(pool, start)


class _Follower:
    def __init__(self, database: Any, stream: str, is_postgresql: bool, end: str) -> None:
        self._database = database
        self._stream = stream
        self._is_postgresql = is_postgresql
        self._end = end

    def follow(self, pool: ThreadPoolExecutor, start: str) -> Truth:
        records: list[TruthRecord] = []
        seen: dict[str, TruthPartition] = {}
        running: list[Future[list[dict[str, Any]]]] = [pool.submit(self._query, None, start)]
        while running:
            for change in running.pop(0).result():
                if data := change.get("data_change_record"):
                    records.append(_truth_record(data))
                elif children := change.get("child_partitions_record"):
                    for child in children["child_partitions"]:
                        if child["token"] in seen:
                            continue
                        begin = children["start_timestamp"]
                        parents = frozenset(filter(None, child["parent_partition_tokens"]))
                        seen[child["token"]] = TruthPartition(child["token"], begin, parents)
                        running.append(pool.submit(self._query, child["token"], begin))
        return Truth(records, list(seen.values()))

    def _query(self, token: str | None, start: str) -> list[dict[str, Any]]:
        values = (_zulu(start), self._end, token, _HEARTBEAT_MS)
        kinds = (
            param_types.TIMESTAMP,
            param_types.TIMESTAMP,
            param_types.STRING,
            param_types.INT64,
        )
        names = [f"p{i}" for i in range(1, 5)]
        if self._is_postgresql:
            sql = f'SELECT * FROM "spanner"."read_json_{self._stream}"($1, $2, $3, $4, null)'  # noqa: S608
        else:
            sql = (
                f"SELECT ChangeRecord FROM READ_{self._stream}(start_timestamp => @p1,"  # noqa: S608
                " end_timestamp => @p2, partition_token => @p3, heartbeat_milliseconds => @p4)"
            )
        with self._database.snapshot() as snapshot:
            result = snapshot.execute_sql(
                sql,
                params=dict(zip(names, values, strict=True)),
                param_types=dict(zip(names, kinds, strict=True)),
            )
            return [change for row in result for change in self._changes(row, result.fields)]

    def _changes(self, row: Any, fields: Any) -> Iterator[dict[str, Any]]:
        if self._is_postgresql:
            yield row[0] if isinstance(row[0], dict) else json.loads(row[0])
            return
        element = fields[0].type_.array_element_type
        for change in row[0]:
            for kind, field in zip(change, element.struct_type.fields, strict=True):
                inner = field.type_.array_element_type
                for record in kind or ():
                    yield {field.name: _named(record, inner)}


def _named(value: Any, kind: Any) -> Any:
    """Return the client's lists as mappings by the names of their fields."""
    if TypeCode(kind.code) is TypeCode.STRUCT:
        return {
            field.name: _named(item, field.type_)
            for item, field in zip(value, kind.struct_type.fields, strict=True)
        }
    if TypeCode(kind.code) is TypeCode.ARRAY:
        return [_named(item, kind.array_element_type) for item in value or ()]
    return value


def _truth_record(data: dict[str, Any]) -> TruthRecord:
    return TruthRecord(
        _microseconds(data["commit_timestamp"]),
        data["server_transaction_id"],
        data["record_sequence"],
        data["table_name"],
        tuple(
            (
                canonical(mod.get("keys")),
                canonical(mod.get("new_values")),
                canonical(mod.get("old_values")),
            )
            for mod in data["mods"]
        ),
        data["mod_type"],
    )


def canonical(value: Any) -> str:
    """Return a JSON value or text in canonical form; absent and NULL are null."""
    if isinstance(value, str):
        value = json.loads(value)
    elif value is not None and not isinstance(value, dict | list):
        value = json.loads(value.serialize())
    elif value is not None and hasattr(value, "serialize"):
        value = json.loads(value.serialize() or "null")
    return json.dumps(value, sort_keys=True)


def _microseconds(timestamp: Any) -> str:
    if isinstance(timestamp, str):
        timestamp = datetime.fromisoformat(timestamp)
    return f"{timestamp.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _zulu(timestamp: Any) -> str:
    """Return a timestamp that ends in Z, as parameters must; nanoseconds are kept."""
    if hasattr(timestamp, "rfc3339"):
        return str(timestamp.rfc3339())
    text = str(timestamp)
    return text.replace("+00:00", "Z")
