"""Comparing tables finds every row that differs, and nothing else."""

from decimal import Decimal

import pytest
from pyspark.sql import DataFrame, SparkSession

from slackwater.spark_sink.comparison import Difference, compare

SCHEMA = "Id bigint, Kind string, A string, B string, C array<string>, D decimal(38,9), E double"
ROWS = [
    (n, f"k{n % 3}", f"a{n}", None if n % 2 else "b", [None, "x"], Decimal(n), n / 7)
    for n in range(500)
]
KEY = ("Id", "Kind")


@pytest.fixture
def expected(session: SparkSession) -> DataFrame:
    return session.createDataFrame(ROWS, SCHEMA)


def test_the_same_rows_in_another_order_are_equal(
    session: SparkSession, expected: DataFrame
) -> None:
    other = session.createDataFrame(ROWS[::-1], SCHEMA).repartition(7).select("E", *SELECTED)
    comparison = compare(expected, other, KEY)
    assert comparison.is_equal
    assert comparison.rows == len(ROWS)


SELECTED = ("Id", "Kind", "A", "B", "C", "D")


# Each differs from ROWS in one value of one row.
OTHERS = {
    1: (None, "a1", [None, "x"], Decimal(1), 1 / 7),
    3: ("a3", None, ["x", None], Decimal(3), 3 / 7),
    4: ("a4", "b", ["x"], Decimal(4), 4 / 7),
    5: ("a5", "", [None, "x"], Decimal(5), 5 / 7),
    7: ("a7", None, [None, "x"], Decimal(7), 1.0000000000000002),
    8: ("a8", "b", [None, "x"], Decimal("8.000000001"), 8 / 7),
}


def test_one_value_makes_a_row_different(session: SparkSession, expected: DataFrame) -> None:
    rows = [(n, kind, *OTHERS.get(n, values)) for n, kind, *values in ROWS]
    changed = {n for n, (row, other) in enumerate(zip(ROWS, rows, strict=True)) if row != other}
    assert changed == OTHERS.keys()
    comparison = compare(expected, session.createDataFrame(rows, SCHEMA), KEY)
    # No two of them are in one range.
    assert (comparison.ranges, comparison.different) == (len(OTHERS), len(OTHERS))
    assert (comparison.missing, comparison.unexpected) == (0, 0)
    assert set(comparison.examples) == {
        Difference("different", f'{{"Id":{n},"Kind":"k{n % 3}"}}') for n in OTHERS
    }


def test_rows_that_are_missing_unexpected_or_doubled_are_listed(
    session: SparkSession, expected: DataFrame
) -> None:
    strange = (-1, None, "a", None, None, None, None)
    rows = [*ROWS[:7], *ROWS[8:], ROWS[9], strange]
    comparison = compare(expected, session.createDataFrame(rows, SCHEMA), KEY, examples_max=2)
    assert (comparison.missing, comparison.unexpected, comparison.different) == (1, 1, 1)
    assert not comparison.is_equal
    assert len(comparison.examples) == 2
    assert Difference("unexpected", '{"Id":-1,"Kind":null}') in comparison.examples


def test_timestamps_within_one_millisecond_differ(session: SparkSession) -> None:
    rows = [("2026-01-31 09:00:00.123456",), ("2026-01-31 09:00:00.123457",)]
    of_key = session.createDataFrame(rows, "At string").selectExpr("timestamp(At) AS At")
    comparison = compare(of_key, of_key.limit(1), ("At",))
    assert (comparison.missing, comparison.different) == (1, 0)
    of_array = of_key.selectExpr("1 AS Id", "array(At) AS At").coalesce(1).collect()
    one, other = (session.createDataFrame([row]) for row in of_array)
    assert compare(one, other, ("Id",)).different == 1


def test_a_table_without_a_key_has_one_row(session: SparkSession, expected: DataFrame) -> None:
    assert compare(expected.limit(1), expected.limit(1), ()).is_equal
    assert not compare(expected.limit(1), expected.limit(0), ()).is_equal
