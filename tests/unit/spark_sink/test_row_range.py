"""What is passed over when a range of keys is read has no row of the range."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.row_range import RowRange

SCHEMA = pa.schema({"number": pa.int64(), "text": pa.string()})
NUMBERS = st.one_of(st.none(), st.integers(-5, 5))
TEXTS = st.one_of(st.none(), st.text("aé\U0001f600", max_size=2))


def is_inside(value: object, within: RowRange) -> bool:
    return (
        value is not None
        and (within.least is None or value >= within.least)  # type: ignore[operator]
        and (within.greatest is None or value <= within.greatest)  # type: ignore[operator]
    )


@given(
    rows=st.lists(st.tuples(NUMBERS, TEXTS), max_size=20),
    limits=st.tuples(NUMBERS, NUMBERS),
    texts=st.tuples(TEXTS, TEXTS),
    gone=st.sets(st.integers(0, 19)),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_row_of_the_range_is_passed_over(
    tmp_path: Path,
    rows: list[tuple[int | None, str | None]],
    limits: tuple[int | None, int | None],
    texts: tuple[str | None, str | None],
    gone: set[int],
) -> None:
    numbers, words = zip(*rows, strict=True) if rows else ((), ())
    table = pa.table({"number": numbers, "text": words}, SCHEMA)
    pq.write_table(table, tmp_path / "file", row_group_size=3)
    marks = {"file": pa.array(sorted(gone), pa.int64())}
    for within in (RowRange("number", *limits), RowRange("text", *texts)):
        reader = FileReader(str(tmp_path), {}, SCHEMA, marks, within)
        read = reader.table([WrittenFile("", None, "file")]).to_pylist()
        expected = [row for place, row in enumerate(table.to_pylist()) if place not in gone]
        there = [row for row in expected if is_inside(row[within.column], within)]
        assert [row for row in read if is_inside(row[within.column], within)] == there
        assert all(row in expected for row in read)


@pytest.mark.parametrize(
    ("bounds", "is_read"),
    [((1, 4, 0), False), ((1, 5, 0), True), ((7, 9, 0), True), ((8, 9, 0), False)],
)
def test_other_values_are_passed_over(bounds: tuple[int, int, int], is_read: bool) -> None:
    assert RowRange("number", 5, 7).may_have(*bounds) == is_read
    # Those without a value may be anywhere, and a bound of another type says nothing.
    assert RowRange("number", 5, 7).may_have(*bounds[:2], 1)
    assert RowRange("number", "5", "7").may_have(*bounds)
    assert RowRange("number", 5, None).may_have(bounds[0], None, 0)
