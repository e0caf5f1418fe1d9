"""The lines of `slackwater tail` in each format, without a change stream."""

import csv
import json
from typing import Any

import pyarrow as pa
import pytest

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.filters.record_filter import ModType, RecordFilter
from slackwater.tail.line_format import LineFormat, LineFormatter
from tests.unit.spark_sink.test_envelopes import ORIGIN, record

WATERMARK_NS = 1_769_850_000_123_456_500
NO_FILTER = RecordFilter()


def formatter(
    line_format: LineFormat,
    envelope: str = "wrapped",
    record_filter: RecordFilter = NO_FILTER,
) -> LineFormatter:
    return LineFormatter(
        line_format, envelopes()[envelope](EnvelopeOptions(ORIGIN)), record_filter, None
    )


def lines(formatting: LineFormatter, *rows: dict[str, Any]) -> list[str]:
    text = "".join(formatting.lines(pa.Table.from_pylist(list(rows))))
    assert text == "" or text.endswith("\n")
    return text.splitlines()


def test_a_text_line_has_time_mod_type_table_key_and_value() -> None:
    (line,) = lines(formatter(LineFormat.TEXT), record())
    time, mod_type, table, rest = line.split(" ", 3)
    assert (time, mod_type, table) == ("2026-01-31T09:00:00.123456Z", "UPDATE", "sales.Orders")
    assert rest.startswith("[7,")
    assert rest.endswith("}}")
    assert formatter(LineFormat.TEXT).header() == ""


def test_a_json_line_is_an_object_of_table_key_and_value() -> None:
    (line,) = lines(formatter(LineFormat.JSON), record())
    fields = json.loads(line)
    assert list(fields) == ["table", "key", "value"]
    assert fields["table"] == "sales.Orders"
    assert fields["value"]["after"]["Name"] == "new"


def test_a_value_that_an_envelope_leaves_out_is_null_in_json() -> None:
    (line,) = lines(formatter(LineFormat.JSON, "key_only"), record())
    assert json.loads(line)["value"] is None


def test_csv_has_a_header_and_quotes_its_cells() -> None:
    formatting = formatter(LineFormat.CSV)
    assert formatting.header() == "table,key,value\n"
    ((table, key, value),) = csv.reader(lines(formatting, record()))
    assert table == "sales.Orders"
    assert json.loads(key)[0] == 7
    assert json.loads(value)["after"]["Name"] == "new"


@pytest.mark.parametrize("line_format", list(LineFormat))
def test_a_resolved_line_has_its_time_alone(line_format: LineFormat) -> None:
    line = formatter(line_format).resolved_line(WATERMARK_NS)
    if line_format is LineFormat.CSV:
        ((table, key, line),) = csv.reader([line])
        assert (table, key) == ("NULL", "NULL")
    assert json.loads(line) == {"resolved": "1769850000123456500.0000000000"}


def test_what_the_filter_leaves_out_gets_no_line() -> None:
    only_deletes = RecordFilter(mod_types=(ModType.DELETE,))
    formatting = formatter(LineFormat.TEXT, record_filter=only_deletes)
    assert [line.split()[1] for line in lines(formatting, record(), record("DELETE"))] == ["DELETE"]
