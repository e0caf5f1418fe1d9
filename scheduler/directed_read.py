"""Directed reads: which replicas serve the queries.

Spanner takes DirectedReadOptions in protobuf's JSON form. Users may write that, or the short form
of the settings file: {"include": [{"location": "us-east1", "type": "READ_ONLY"}]}.
"""

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

_PROTOBUF_KEYS: Final = {"include": "includeReplicas", "exclude": "excludeReplicas"}
# The keys inside those of protobuf's form.
_SELECTIONS: Final = "replicaSelections"
_SELECTION_KEYS: Final = {
    "includeReplicas": (_SELECTIONS, "autoFailoverDisabled"),
    "excludeReplicas": (_SELECTIONS,),
}
# Protobuf's parser takes the names of the fields, too.
_FIELD_NAMES: Final = {
    "include_replicas": "includeReplicas",
    "exclude_replicas": "excludeReplicas",
    "replica_selections": _SELECTIONS,
    "auto_failover_disabled": "autoFailoverDisabled",
    "type_": "type",
}
_REPLICA_KEYS: Final = ("location", "type")
_REPLICA_TYPES: Final = ("READ_WRITE", "READ_ONLY")
# Protobuf's parser takes the numbers of the types, too.
_PROTOBUF_TYPES: Final = (*_REPLICA_TYPES, "TYPE_UNSPECIFIED", 0, 1, 2)


def parse_directed_read(value: object) -> dict[str, Any] | None:
    """Return DirectedReadOptions in protobuf's JSON form; None for JSON's null.

    Protobuf's form is checked here, too: its own parser comes with Spanner's client, which the
    processes that only parse options must not load.

    Args:
        value: a mapping, or its JSON text; in the short form or in protobuf's.

    Raises:
        ValueError: value is neither; the message names the part that is wrong.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is not valid JSON: {error}") from error
        if value is None:
            return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping with include or exclude")  # noqa: TRY004
    if any(_FIELD_NAMES.get(key, key) in _SELECTION_KEYS for key in value):
        return _protobuf_form(value)
    _refuse_unknown_keys("", value, _PROTOBUF_KEYS)
    lists = {key: replicas for key, replicas in value.items() if replicas}
    if len(lists) != 1:
        raise ValueError("needs one list of replicas, include or exclude, and not both")
    [(key, replicas)] = lists.items()
    if not isinstance(replicas, list | tuple):
        raise ValueError(f"{key}: {replicas!r} is not a list of replicas")  # noqa: TRY004
    selections = [_replica(f"{key}[{index}]", item) for index, item in enumerate(replicas)]
    return {_PROTOBUF_KEYS[key]: {_SELECTIONS: selections}}


def _protobuf_form(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in protobuf's form, with the JSON names of its fields."""
    options = _json_names("", value, tuple(_SELECTION_KEYS))
    if len(options) != 1:
        raise ValueError("needs one of includeReplicas and excludeReplicas, and not both")
    [(key, inner)] = options.items()
    if not isinstance(inner, Mapping):
        raise ValueError(f"{key}: {inner!r} is not a mapping with {_SELECTIONS}")  # noqa: TRY004
    fields = {
        k: v for k, v in _json_names(key, inner, _SELECTION_KEYS[key]).items() if v is not None
    }
    disabled = fields.get("autoFailoverDisabled", False)
    if not isinstance(disabled, bool):
        raise ValueError(f"{key}.autoFailoverDisabled: {disabled!r} is neither true nor false")  # noqa: TRY004
    place, replicas = f"{key}.{_SELECTIONS}", fields.get(_SELECTIONS, [])
    if not isinstance(replicas, list | tuple):
        raise ValueError(f"{place}: {replicas!r} is not a list of replicas")  # noqa: TRY004
    if _SELECTIONS in fields:
        fields[_SELECTIONS] = [
            _replica(f"{place}[{index}]", item, _PROTOBUF_TYPES)
            for index, item in enumerate(replicas)
        ]
    return {key: fields}


def _replica(
    place: str, value: object, types: Collection[str | int] = _REPLICA_TYPES
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: {value!r} is not a mapping with location or type")  # noqa: TRY004
    keys = _json_names(place, value, _REPLICA_KEYS)
    replica = {key: text for key, text in keys.items() if text is not None}
    location, kind = replica.get("location", ""), replica.get("type", _REPLICA_TYPES[0])
    if not isinstance(location, str):
        raise ValueError(f"{place}.location: {location!r} is not text")  # noqa: TRY004
    if kind not in types:
        raise ValueError(f"{place}.type: {kind!r} is not one of {', '.join(_REPLICA_TYPES)}")
    return replica


def _json_names(place: str, value: Mapping[str, Any], allowed: Collection[str]) -> dict[str, Any]:
    """Return a message of protobuf's by the JSON names of its fields.

    Raises:
        ValueError: it has another key, or a field under both its names.
    """
    fields = {_FIELD_NAMES.get(key, key): inner for key, inner in value.items()}
    _refuse_unknown_keys(place, fields, allowed)
    if len(fields) < len(value):
        raise ValueError(f"{place}{': ' if place else ''}a key is set twice, in two spellings")
    return fields


def _refuse_unknown_keys(place: str, value: Mapping[str, Any], allowed: Collection[str]) -> None:
    for key in value:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(allowed)}"
            raise ValueError(f"{place}{': ' if place else ''}unknown key {key!r}; {hint}")
