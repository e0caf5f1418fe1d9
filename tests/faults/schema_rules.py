"""Rules of the fault proxy for reads of the information schema."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from google.cloud.spanner_v1.types import ExecuteSqlRequest, ResultSet

TOO_STALE: Final = "Read-only transaction timestamp has exceeded the maximum timestamp staleness"


@dataclass(frozen=True, slots=True)
class Options:
    """The information schema shows these options of a change stream, too; the emulator hides some.

    Every option is TRUE for a boolean.
    """

    change_stream: str
    options: Sequence[str]


@dataclass(frozen=True, slots=True)
class Versions:
    """Reads of a time before this one are refused: its versions are no longer there."""

    earliest_ns: int


def with_options(rules: Iterable[object], request: bytes, answer: bytes) -> bytes:
    """Return the answer to a query of change streams' options with those of the rules."""
    if "change_stream_options" not in ExecuteSqlRequest.deserialize(request).sql.lower():
        return answer
    result = ResultSet.pb(ResultSet.deserialize(answer))
    for rule in rules:
        if isinstance(rule, Options):
            for option in rule.options:
                row = result.rows.add()
                row.extend([rule.change_stream, option, "TRUE"])
    return bytes(result.SerializeToString())


def is_of_old_version(rules: Iterable[object], request: bytes) -> bool:
    """Return whether a query reads a time whose versions are gone by one of the rules."""
    asked = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request))
    only = asked.transaction.single_use.read_only
    at_ns = only.read_timestamp.ToNanoseconds() if only.HasField("read_timestamp") else None
    return any(
        isinstance(rule, Versions) and at_ns is not None and at_ns < rule.earliest_ns
        for rule in rules
    )
