"""Options of `slackwater tail` that are refused before anything is connected to."""

from dataclasses import replace
from typing import Any

import pytest

from slackwater.errors import TailOptionError
from slackwater.tail.line_format import LineFormat
from slackwater.tail.options import NAMES, ChangefeedOptions, tail

OPTIONS = ChangefeedOptions(
    config=None,
    pipeline=None,
    source_values={name: name.replace("_", "-") for name in NAMES},
    filter_fields={},
    line_format=LineFormat.TEXT,
    envelope="wrapped",
    updated=False,
    mvcc_timestamp=False,
    cursor=None,
    end_time=None,
    initial_scan=False,
    initial_scan_only=False,
    resolved=None,
)
ENRICHED = {"envelope": "enriched"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"envelope": "flat", "updated": True}, "can't be used with --envelope flat"),
        ({"envelope": "debezium", "mvcc_timestamp": True}, "with --envelope debezium"),
        (
            {"enriched_properties": "source"},
            "--enriched-properties can't be used with --envelope w",
        ),
        ({**ENRICHED, "enriched_properties": "source,origin"}, "'source,origin' is not source, sc"),
        ({**ENRICHED, "enriched_properties": "schema", "updated": True}, "are fields of source"),
        ({**ENRICHED, "mvcc_timestamp": True}, "--updated and --mvcc-timestamp are fields of s"),
        (
            {"envelope": "key_only", "encode_json_value_null_as_object": True},
            "--encode-json-value-null-as-object can't be used with --envelope key_only.",
        ),
        ({"envelope": "letter"}, "--envelope letter is not one of "),
        ({"initial_scan_only": True, "end_time": "1769850000123456500"}, "--end-time can't be"),
        ({"filter_fields": {"columns": ("Name",)}}, "--column: 'Name'"),
        ({"filter_fields": {"exclude_columns": ("Name",)}}, "--exclude-column: 'Name'"),
        ({"filter_fields": {"when_changed": ("Name",)}}, "--when-changed: 'Name'"),
        ({"resolved": "soon"}, "--resolved: 'soon'"),
        ({"cursor": "yesterday"}, "--cursor: 'yesterday'"),
        ({"end_time": "tomorrow"}, "--end-time: 'tomorrow'"),
        ({"source_values": {"project": "p"}}, "missing: --instance, --database, --change-stream."),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TailOptionError) as refused:
        tail(replace(OPTIONS, **changed))
    assert message in refused.value.message
    assert refused.value.user_error


def test_missing_names_come_with_the_options_that_give_them() -> None:
    with pytest.raises(TailOptionError) as refused:
        tail(replace(OPTIONS, source_values={"project": "p", "database": "d"}))
    assert "-c FILE" in refused.value.hint
    assert "--instance NAME --change-stream NAME" in refused.value.hint
