"""Comparison of two tables: first count and checksum of each key range, then single keys.

Key ranges are ranges of a hash of the key. If all agree, no row leaves the task that read it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from slackwater.spark_sink.formats import JSON, write_options
from slackwater.spark_sink.sql.quoting import identifier

RANGES: Final = 256


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs between the two sides.

    Attributes:
        kind: "missing", "unexpected" or "different".
        key: JSON of the key's columns.
    """

    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        rows: the number of expected rows.
        ranges: the number of key ranges whose count or checksum differs.
        missing, unexpected, different: the numbers of such rows.
        examples: some of the differences.
    """

    rows: int
    ranges: int = 0
    missing: int = 0
    unexpected: int = 0
    different: int = 0
    examples: tuple[Difference, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not (self.ranges or self.missing or self.unexpected or self.different)


def compare(
    expected: DataFrame, actual: DataFrame, key: Sequence[str], *, examples_max: int = 20
) -> Comparison:
    """Compare two tables of the same columns; the order of rows does not matter.

    Args:
        expected: the table as it should be.
        actual: the table as it is.
        key: the names of the key's columns; a table without a key has at most one row.
        examples_max: the number of differences that are listed at most.
    """
    columns = [_column(name) for name in expected.columns]
    sides = [_with_row_hash(side.select(*columns), key) for side in (expected, actual)]
    totals = [_totals(side, "key_range") for side in sides]
    by_range = totals[0].join(
        totals[1].toDF("key_range", *_ACTUAL_COLUMNS), on="key_range", how="full"
    )
    summed = by_range.collect()
    rows = sum(row["rows"] or 0 for row in summed)
    wrong = [row["key_range"] for row in summed if row[1:3] != row[3:5]]
    if not wrong:
        return Comparison(rows)
    differences = _differing_keys(*(side.where(F.col("key_range").isin(wrong)) for side in sides))
    counts = {row["kind"]: int(row[1]) for row in differences.groupBy("kind").count().collect()}
    examples = differences.orderBy("key").limit(examples_max).collect()
    return Comparison(
        rows,
        len(wrong),
        missing=counts.get("missing", 0),
        unexpected=counts.get("unexpected", 0),
        different=counts.get("different", 0),
        examples=tuple(Difference(row["kind"], row["key"]) for row in examples),
    )


_ACTUAL_COLUMNS: Final = ("actual_rows", "actual_checksum")


def _with_row_hash(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return for each row its key as JSON, the key's range, and a checksum of all columns."""
    text = _json(map(_column, key)) if key else F.lit("{}")
    key_range = F.pmod(F.xxhash64("key"), F.lit(RANGES)).alias("key_range")
    hashed = rows.select(text.alias("key"), _row_hash(rows).alias("row"))
    return hashed.select(key_range, "key", "row")


def _row_hash(rows: DataFrame) -> Column:
    """Return a hash of a row.

    A NULL leaves a hash unchanged, so whether each value is NULL is hashed, too.
    """
    parts: list[Column] = []
    for field in rows.schema.fields:
        value = _column(field.name)
        # NULLs in an array would not change the hash either.
        is_array = field.dataType.typeName() == "array"
        parts += [_json([value]) if is_array else value, value.isNull()]
    return F.xxhash64(*parts)


def _json(values: Iterable[Column]) -> Column:
    return F.to_json(F.struct(*values), {"ignoreNullFields": "false", **write_options(JSON)})


def _totals(rows: DataFrame, by: str) -> DataFrame:
    """Return counts and checksums that do not depend on order and can't overflow."""
    return rows.groupBy(by).agg(
        F.count("*").alias("rows"), F.sum(F.col("row").cast("decimal(38,0)")).alias("checksum")
    )


def _differing_keys(expected: DataFrame, actual: DataFrame) -> DataFrame:
    """Return the keys that differ, and how; a key may wrongly have several rows."""
    sides = _totals(expected, "key").join(
        _totals(actual, "key").toDF("key", *_ACTUAL_COLUMNS), on="key", how="full"
    )
    kind = (
        F.when(F.col("actual_rows").isNull(), "missing")
        .when(F.col("rows").isNull(), "unexpected")
        .otherwise("different")
    )
    is_same = (F.col("rows") == F.col("actual_rows")) & (
        F.col("checksum") == F.col("actual_checksum")
    )
    return sides.where(~F.coalesce(is_same, F.lit(False))).select(kind.alias("kind"), "key")


def _column(name: str) -> Column:
    return F.col(identifier(name))
