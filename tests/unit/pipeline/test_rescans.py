"""What a rescan decides: what differs, what an epoch does after it, how far it has come."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slackwater.pipeline.epochs.chunk_size import FIRST_ROWS, next_rows
from slackwater.pipeline.epochs.rescanner import after_chunk
from slackwater.reader.database.key_range_read import KeyRangeRows
from slackwater.spark_sink.sink import ChunkResult
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.corrections import (
    Corrections,
    differences,
    typed_rows,
    vanished,
    with_corrections,
)
from slackwater.spark_sink.tables.row_merges.row_changes import IS_CHANGED, Mod, latest_by_key
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.state.rescan_models import REQUESTED, Rescan, RescanState
from slackwater.timestamp import datetime_to_us

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
AT_US = datetime_to_us(AT)
COLUMNS = (
    Column("Id", "INT64", is_key=True),
    Column("A", "STRING(MAX)", is_key=False),
    Column("F", "FLOAT64", is_key=False),
    Column("L", "ARRAY<FLOAT64>", is_key=False),
)
VALUES = {
    "A": st.sampled_from([None, "", "a"]),
    "F": st.sampled_from([None, "NaN", 0.5]),
    "L": st.sampled_from([None, [], ["NaN", None], [0.5]]),
}
Row = dict[str, Any]
ROWS = st.dictionaries(st.integers(0, 9), st.fixed_dictionaries(VALUES))
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
        st.fixed_dictionaries({}, optional=VALUES),
    )
)


def json_rows(table: dict[int, Row]) -> list[Row]:
    return [{"Id": str(number), **row} for number, row in table.items()]


def applied(mirror: dict[int, Row], latest: pa.Table) -> dict[int, Row]:
    """Do what a MERGE does."""
    after = dict(mirror)
    for row in latest.to_pylist():
        number = row["Id"]
        if row["_latest_is_deleted"]:
            after.pop(number, None)
        elif row["_latest_is_whole"]:
            after[number] = {name: row[name] for name in VALUES}
        else:
            before = after.get(number, dict.fromkeys(VALUES))
            changed = {name: row[name] for name in VALUES if row[IS_CHANGED + name]}
            after[number] = before | changed
    return after


def typed(table: dict[int, Row]) -> dict[int, Row]:
    rows = typed_rows(json_rows(table), COLUMNS, AT).rows.to_pylist()
    return {row["Id"]: {name: row[name] for name in VALUES} for row in rows}


def as_spark_names_it(latest: pa.Table) -> pa.Table:
    """Return the same rows; what an array has is called otherwise."""
    array = pa.field("L", pa.list_(pa.field("element", pa.float64())))
    at = latest.schema.get_field_index("L")
    return latest.set_column(at, array, latest.column("L").cast(array.type))


@given(table=ROWS, mirror=ROWS, changes=CHANGES)
def test_a_corrected_mirror_is_its_table_also_after_the_next_epoch(
    table: dict[int, Row], mirror: dict[int, Row], changes: list[tuple[int, str, Row]]
) -> None:
    expected = typed_rows(json_rows(table), COLUMNS, AT)
    actual = typed_rows(json_rows(mirror), COLUMNS, AT).rows.select([c.name for c in COLUMNS])
    wrong = differences(expected, actual, COLUMNS, AT)
    # NaN is not equal to itself.
    assert repr(sorted(applied(typed(mirror), wrong).items())) == repr(sorted(typed(table).items()))
    mods, truth = [], dict(table)
    for number, kind, values in changes:
        is_there = number in truth
        if kind == ("INSERT" if is_there else "UPDATE") or (kind == "DELETE" and not is_there):
            continue
        key, new = orjson.dumps({"Id": str(number)}).decode(), orjson.dumps(values).decode()
        mods.append(Mod(key, kind, False, new, AT_US))
        if kind == "DELETE":
            del truth[number]
        else:
            before = truth[number] if is_there else dict.fromkeys(VALUES)
            truth[number] = before | values
    latest = latest_rows(latest_by_key(mods), COLUMNS)
    for folded in (latest, as_spark_names_it(latest)):
        after = applied(typed(mirror), with_corrections(folded, wrong, COLUMNS))
        assert repr(sorted(after.items())) == repr(sorted(typed(truth).items()))


def test_a_mirror_keeps_what_it_has_of_a_row_that_can_not_be_converted() -> None:
    table: list[Row] = [{"Id": "1", "A": "a", "F": "no number"}, {"Id": "2", "A": "b"}]
    expected = typed_rows(table, COLUMNS, AT)
    actual = typed_rows([{"Id": "1", "A": "old"}], COLUMNS, AT).rows
    wrong = differences(expected, actual, COLUMNS, AT)
    assert wrong.column("Id").to_pylist() == [2]
    assert expected.unconverted.column("Id").to_pylist() == [1]


def test_rows_that_vanished_are_told_by_their_keys() -> None:
    expected = typed_rows([{"Id": "1", "A": "new"}, {"Id": "2", "A": "b"}], COLUMNS, AT)
    keys = typed_rows([{"Id": "1"}, {"Id": "7"}, {"Id": "8"}], COLUMNS, AT).rows.select(["Id"])
    gone = vanished(expected, keys, COLUMNS, AT)
    assert gone.column("Id").to_pylist() == [7, 8]
    assert gone.column("_latest_is_deleted").to_pylist() == [True, True]


def test_corrections_fit_an_epoch_with_the_same_columns_only() -> None:
    corrections = Corrections(COLUMNS, AT, typed_rows([], COLUMNS, AT).rows)
    assert corrections.fit(())
    assert corrections.fit(
        [Column("Id", "INT64", is_key=True), Column("A", "STRING", is_key=False)]
    )
    assert not corrections.fit([Column("New", "STRING", is_key=False)])
    assert not corrections.fit([Column("A", "INT64", is_key=False)])
    assert not corrections.fit([Column("A", "STRING", is_key=False, absent_at=AT)])


def test_a_rescan_goes_on_behind_a_range_that_is_equal() -> None:
    rescan = Rescan("orders", "T", 1_000, REQUESTED)
    rows = KeyRangeRows([{"Id": "1"}, {"Id": "5"}], ("5",))
    again = after_chunk(rescan, rows, ChunkResult(is_done=False, corrected=2), 2_000)
    assert (again.after_key, again.corrected, again.records) == (None, 2, 0)
    on = after_chunk(again, rows, ChunkResult(is_done=True, corrected=0), 3_000)
    assert (on.after_key, on.corrected, on.records, on.chunks) == ('["5"]', 2, 2, 1)
    assert on.state is RescanState.RUNNING
    end = after_chunk(on, KeyRangeRows([], None), ChunkResult(is_done=True, corrected=0), 4_000)
    assert (end.state, end.records, end.chunks, end.at_ns) == (RescanState.DONE, 2, 2, 4_000)


def test_chunks_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    assert next_rows(FIRST_ROWS, 0.1) == 2 * FIRST_ROWS
    assert next_rows(FIRST_ROWS, 1.0) == FIRST_ROWS
    assert next_rows(FIRST_ROWS, 3.0) == FIRST_ROWS // 2
    rows = FIRST_ROWS
    for _ in range(20):
        rows = next_rows(rows, 0.0)
    assert rows == next_rows(rows, 0.0)
    for _ in range(20):
        rows = next_rows(rows, 9.0)
    assert rows == next_rows(rows, 9.0) > 0
