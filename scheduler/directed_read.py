"""Directed reads: which replicas serve the queries.

Spanner takes DirectedReadOptions in protobuf's JSON form. Users may write that, or the short form
of the settings file: {"include": [{"location": "us-east1", "type": "READ_ONLY"}]}.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

# From the short form's keys to protobuf's, which its parser takes in both spellings.
_PROTOBUF_KEYS: Final = {"include": "includeReplicas", "exclude": "excludeReplicas"}
_PROTOBUF_SPELLINGS: Final = frozenset(
    {"includeReplicas", "excludeReplicas", "include_replicas", "exclude_replicas"}
)
_REPLICA_KEYS: Final = ("location", "type")
_REPLICA_TYPES: Final = ("READ_WRITE", "READ_ONLY")


def parse_directed_read(value: object) -> dict[str, Any]:
    """Return DirectedReadOptions in protobuf's JSON form.

    Args:
        value: a mapping, or its JSON text; in the short form or in protobuf's. The replicas of
            protobuf's form are left to protobuf.

    Raises:
        ValueError: value is neither; the message names the part that is wrong.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is not valid JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping with include or exclude")  # noqa: TRY004
    if len(value) == 1 and set(value) <= _PROTOBUF_SPELLINGS:
        return dict(value)
    _refuse_unknown_keys("", value, _PROTOBUF_KEYS)
    lists = {key: replicas for key, replicas in value.items() if replicas}
    if len(lists) != 1:
        raise ValueError("needs one list of replicas, include or exclude, and not both")
    [(key, replicas)] = lists.items()
    if not isinstance(replicas, list | tuple):
        raise ValueError(f"{key}: {replicas!r} is not a list of replicas")  # noqa: TRY004
    selections = [_replica(f"{key}[{index}]", item) for index, item in enumerate(replicas)]
    return {_PROTOBUF_KEYS[key]: {"replicaSelections": selections}}


def _replica(place: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: {value!r} is not a mapping with location or type")  # noqa: TRY004
    _refuse_unknown_keys(place, value, _REPLICA_KEYS)
    replica = {key: text for key, text in value.items() if text is not None}
    location, kind = replica.get("location", ""), replica.get("type", _REPLICA_TYPES[0])
    if not isinstance(location, str):
        raise ValueError(f"{place}.location: {location!r} is not text")  # noqa: TRY004
    if kind not in _REPLICA_TYPES:
        raise ValueError(f"{place}.type: {kind!r} is not one of {', '.join(_REPLICA_TYPES)}")
    return replica


def _refuse_unknown_keys(place: str, value: Mapping[str, Any], allowed: Collection[str]) -> None:
    for key in value:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
            raise ValueError(f"{place}{': ' if place else ''}unknown key {key!r}; {hint}")
