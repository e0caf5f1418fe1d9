"""A merge leaves the rows of a model, whichever files it writes again and whichever it marks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.spark_sink.tables.row_merges.changed_rows import ChangedRows
from slackwater.spark_sink.tables.row_merges.file_merge import FileMerge
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_changes import MergePolicy
from tests.support.merged_tables import (
    CLEARED,
    COLUMNS,
    MARKS,
    SCHEMA,
    File,
    latest_of,
    rows_of,
)

Rows = dict[int | None, dict[str, Any]]


KEYS = st.one_of(st.none(), st.integers(-3, 6))
VALUES = st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from([None, "x", "y"]))
# Deleted, or with a whole row, or with some of its columns.
CHANGES = st.tuples(st.sampled_from(["delete", "whole", "some"]), VALUES)
EPOCHS = st.lists(st.dictionaries(KEYS, CHANGES, max_size=6), min_size=1, max_size=5)


def possible(
    epoch: Mapping[int | None, tuple[str, Mapping[str, Any]]], model: Rows
) -> dict[int | None, tuple[str, Mapping[str, Any]]]:
    """Return an epoch in which rows that are not there are not updated, but inserted."""
    return {
        key: ("whole" if kind == "some" and key not in model else kind, values)
        for key, (kind, values) in epoch.items()
    }


def after(model: Rows, epoch: Mapping[int | None, tuple[str, Mapping[str, Any]]]) -> Rows:
    """Return the rows of a model after an epoch."""
    made = {key: dict(row) for key, row in model.items()}
    for key, (kind, values) in epoch.items():
        if kind == "delete":
            made.pop(key, None)
        else:
            made[key] = (made[key] if kind == "some" else {"A": None, "B": None}) | dict(values)
    return made


@given(
    epochs=EPOCHS,
    sizes=st.lists(st.booleans()),
    marks=st.booleans(),
    files_max=st.sampled_from([2, 50]),
)
@settings(deadline=None)
@pytest.mark.parametrize("are_kept", [False, True])
def test_random_epochs_leave_the_rows_of_a_model(
    epochs: Any, sizes: list[bool], marks: bool, files_max: int, *, are_kept: bool
) -> None:
    schema = pa.schema([*SCHEMA, *(MARKS.items() if are_kept else ())])
    # A file without rows, as others may write.
    files = [File(schema.empty_table(), is_small=False, may_be_marked=marks)]
    model: Rows = {}
    for number, drawn in enumerate(epochs):
        epoch = possible(drawn, model)
        files = [file for file in files if file.is_there]
        before, changes = rows_of(files), ChangedRows()
        merge = FileMerge(
            files, schema, latest_of(epoch), COLUMNS, MergePolicy(are_kept), files_max, changes
        )
        written = pa.concat_tables([schema.empty_table(), *merge.rows()])
        is_small = number < len(sizes) and sizes[number]
        files.append(File(written, is_small=is_small, may_be_marked=marks))
        model = after(model, epoch)
        there = rows_of(files)
        present = [row for row in there if not row.get("_is_deleted")]
        assert {row["Id"]: {"A": row["A"], "B": row["B"]} for row in present} == model
        assert len(present) == len(model)
        assert len({row["Id"] for row in there}) == len(there)
        require_changes(before, there, changes)


def require_changes(
    before: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]], changes: ChangedRows
) -> None:
    """Require that the rows that changed lead from those before to those that are there."""
    counted = Counter(repr(sorted(row.items())) for row in before)
    for table in changes.tables:
        for row in table.to_pylist():
            kind = row.pop("_change_type")
            deleted = kind in {"delete", "update_preimage"}
            counted[repr(sorted(row.items()))] += -1 if deleted else 1
    assert +counted == Counter(repr(sorted(row.items())) for row in there)
    assert not -counted


def test_a_table_without_a_key_stays_if_nothing_changes_its_row() -> None:
    columns = [column for column in COLUMNS if not column.is_key]
    schema = pa.schema({"A": pa.string(), "B": pa.string()})
    row = pa.table({"A": ["x"], "B": ["y"]}, schema)
    files = [File(row, is_small=True, may_be_marked=False)]
    merge = FileMerge(files, schema, latest_rows({}, columns), columns, MergePolicy(False), 50)
    assert sum(table.num_rows for table in merge.rows()) == 0
    assert rows_of(files) == row.to_pylist()


@pytest.mark.parametrize("are_kept", [False, True])
def test_the_rows_of_a_former_table_go_and_those_of_the_epoch_stay(*, are_kept: bool) -> None:
    schema = pa.schema([*SCHEMA, *(MARKS.items() if are_kept else ())])
    files = [File(schema.empty_table(), is_small=False, may_be_marked=True)]
    for others, epoch in (
        (MergePolicy(are_kept), {1: ("whole", {"A": "x"}), 2: ("whole", {"A": "y"})}),
        (MergePolicy(are_kept, CLEARED), {2: ("whole", {"A": "new"})}),
    ):
        merge = FileMerge(files, schema, latest_of(epoch), COLUMNS, others, 50)
        written = pa.concat_tables([schema.empty_table(), *merge.rows()])
        files.append(File(written, is_small=True, may_be_marked=True))
    present = [row for row in rows_of(files) if not row.get("_is_deleted")]
    assert [(row["Id"], row["A"]) for row in present] == [(2, "new")]
    marked = [row for row in rows_of(files) if row.get("_is_deleted")]
    assert [row["_commit_timestamp"] for row in marked] == [CLEARED] * are_kept
