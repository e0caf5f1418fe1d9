"""Directed reads are checked before Spanner sees them, and mean the same afterwards."""

from typing import Any

import pytest
from google.cloud.spanner_v1 import DirectedReadOptions
from google.protobuf import json_format

from slackwater.scheduler.directed_read import parse_directed_read
from tests.unit.scheduler.test_source_settings import REPLICAS


@pytest.mark.parametrize(
    "value",
    [
        REPLICAS,
        {
            "include_replicas": {
                "replica_selections": [{"type_": 1}, {"location": "a", "type": None}]
            }
        },
        {"includeReplicas": {"autoFailoverDisabled": True}},
        {"exclude_replicas": {"replicaSelections": None}},
        {"excludeReplicas": {"replicaSelections": [{"type": "TYPE_UNSPECIFIED"}, {}]}},
        {"includeReplicas": {}},
    ],
    ids=str,
)
def test_protobuf_reads_the_same_before_and_after_the_check(value: dict[str, Any]) -> None:
    pb = DirectedReadOptions.pb
    expected = json_format.ParseDict(value, pb(DirectedReadOptions()))
    parsed = parse_directed_read(value)
    assert parsed is not None
    assert json_format.ParseDict(parsed, pb(DirectedReadOptions())) == expected


def test_the_keys_of_protobufs_form_are_those_of_the_client() -> None:
    options = DirectedReadOptions.pb(DirectedReadOptions()).DESCRIPTOR
    for field in options.fields:
        inner = [member.json_name for member in field.message_type.fields]
        with pytest.raises(ValueError, match=f"unknown key 'zzz'; known: {', '.join(inner)}$"):
            parse_directed_read({field.json_name: {"zzz": 1}})
