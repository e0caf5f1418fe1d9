"""The text of a view: types, and names that could be mistaken for SQL."""

import pytest

from slackwater.spark_sink.sql.rebuild_view import create_view
from slackwater.spark_sink.sql.types import value_expression

ITEMS = (
    "from_json(CASE WHEN trim(v) = '' THEN '!' ELSE v END, 'array<string>',"
    " map('mode', 'FAILFAST'))"
)


@pytest.mark.parametrize(
    ("spanner_type", "expression"),
    [
        ("INT64", "CAST(v AS BIGINT)"),
        ("STRING(MAX)", "v"),
        ("BYTES(16)", "to_binary(v, 'base64')"),
        ("NUMERIC", "CAST(v AS DECIMAL(38,9))"),
        ("numeric", "v"),
        ("character varying(36)", "v"),
        ("DATE", "CAST((repeat('0', 5 - instr(v, '-')) || v) AS DATE)"),
        ("ARRAY<STRING(MAX)>", ITEMS),
        (
            "ARRAY<INT64>",
            f"transform({ITEMS}, item -> CAST(item AS BIGINT))",
        ),
        ("bytea[]", f"transform({ITEMS}, item -> to_binary(item, 'base64'))"),
        (
            "ARRAY<FLOAT32>(vector_length=>3)",
            f"transform({ITEMS}, item -> CAST(item AS FLOAT))",
        ),
        ("SOMETHING_NEW<X>", "v"),
    ],
)
def test_a_type_decides_how_a_value_is_read(spanner_type: str, expression: str) -> None:
    assert value_expression("v", spanner_type) == expression


@pytest.mark.parametrize("is_whole_row", [False, True])
def test_names_are_quoted_in_both_forms(is_whole_row: bool) -> None:
    columns = {"I'd": "INT64", "B`": "BOOL"}
    text = create_view(
        "sales.Or`ders",
        "sales_Or`ders",
        columns,
        ["I'd"],
        "parquet.`out`",
        is_whole_row=is_whole_row,
    )
    assert text.startswith("CREATE OR REPLACE VIEW `sales_Or``ders` AS\n")
    assert "FROM parquet.`out` LATERAL VIEW" in text
    assert "WHERE table_name = 'sales.Or`ders'" in text
    assert r"CAST(keys['I\'d'] AS BIGINT) AS `I'd`" in text
    assert "CAST(new_values['B`'] AS BOOLEAN) AS `B```" in text
