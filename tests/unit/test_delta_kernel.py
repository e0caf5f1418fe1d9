"""Which rows a Delta table takes without Spark having looked at them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from slackwater.spark_sink.tables.delta_kernel import rows_fit_table

ROWS = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField(
            "mods",
            ArrayType(StructType([StructField("keys", StringType())]), containsNull=False),
        ),
    ]
)


def table(**changed: Any) -> str:
    """The schema of a table that was made for the rows, with its first column changed."""
    column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    keys = {"name": "keys", "type": "string", "nullable": True, "metadata": {}}
    element = {"type": "struct", "fields": [keys]}
    mods = {"type": "array", "elementType": element, "containsNull": True}
    listed = {"name": "mods", "type": mods, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [column | changed, listed]})


def test_rows_fit_a_table_made_for_them() -> None:
    assert rows_fit_table(table(), ROWS)
    assert rows_fit_table(table(metadata={"comment": "of the order"}), ROWS)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "Id"},
        {"type": "string"},
        {"nullable": False},
        {"metadata": {"delta.invariants": "{}"}},
        {"metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}},
        {"type": {"type": "array", "elementType": "long", "containsNull": True}},
    ],
)
def test_rows_do_not_fit_a_table_with_other_requirements(changed: dict[str, Any]) -> None:
    assert not rows_fit_table(table(**changed), ROWS)


@pytest.mark.parametrize("part", ["nullable", "containsNull"])
def test_rows_do_not_fit_a_table_with_values_that_must_not_be_null(part: str) -> None:
    strict = table().replace(f'"{part}": true', f'"{part}": false')
    assert strict != table()
    assert not rows_fit_table(strict, ROWS)


def test_rows_do_not_fit_a_table_with_other_columns() -> None:
    assert not rows_fit_table(table(), StructType(ROWS.fields[:1]))
