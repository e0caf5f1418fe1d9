"""A filter keeps the same records and columns of a row and of an Arrow batch."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from slackwater.reader.schema import SCHEMA
from slackwater.spark_sink.errors import UnknownChangesError
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.record_filter import ModType, RecordFilter
from tests.support.epoch_rows import table_of

TABLES = (
    "Orders",
    "orders",
    "sales.Orders",
    "sales_Orders",
    "Or\nders",
    "Orders2",
    "Großkunden",
    "",
)
TAGS = ("", "batch", "app=a,job=b", "batch\nnight", "(x|y)", "a.b")
FILTERS = [
    RecordFilter(),
    RecordFilter(tables=("Orders",)),
    RecordFilter(tables=("sales.*", "Or?ers*")),
    RecordFilter(tables=("*ß*",)),
    RecordFilter(tables=("sales.Orders|Orders",)),
    RecordFilter(exclude_tables=("*Orders", "")),
    RecordFilter(tables=("*s*",), exclude_tables=("sales.*",)),
    RecordFilter(mod_types=(ModType.INSERT, ModType.DELETE)),
    RecordFilter(transaction_tags=("batch*", "(x|y)")),
    RecordFilter(exclude_transaction_tags=("a?b", "")),
    RecordFilter(system_transactions=False),
    RecordFilter(("*",), (), (ModType.UPDATE,), ("*a*",), ("batch",), system_transactions=False),
]
NO_TRANSACTION = {"transaction_tag": "", "is_system_transaction": False}
START = datetime(2026, 1, 31, 9, tzinfo=UTC)
COLUMNS = ("Item", "Amount", "Tags", "Note")


def test_rows_and_batches_keep_the_same_records() -> None:
    names = ("table_name", "mod_type", "transaction_tag", "is_system_transaction")
    rows = [
        dict(zip(names, row, strict=True))
        for row in itertools.product(TABLES, [str(m) for m in ModType], TAGS, (True, False))
    ]
    kept_of = [len(of_filter) for of_filter in agreed(rows, FILTERS)]
    assert kept_of[0] == len(rows)
    # A glob has no alternatives.
    assert kept_of[4] == 0
    assert all(0 < count < len(rows) for count in kept_of[1:4] + kept_of[5:])


def test_rows_and_batches_leave_out_the_same_columns() -> None:
    values = '{"Item": "a, \\"b\\"", "Amount":1.50,"Tags":["x",null],"Note":null}'
    rows = [
        (
            START,
            "t",
            f"{number:08d}",
            True,
            table,
            [(name, "{}", name == "Id", at) for at, name in enumerate(("Id", *COLUMNS))],
            [("{}", values, "{}"), ("{}", "{}", values)],
            *("UPDATE", "NEW_VALUES", 1, 1, "", False, "p", START),
        )
        for number, table in enumerate(TABLES)
    ]
    [batch] = table_of(rows).to_batches()
    column_filter = ColumnFilter(("*.Item", "Or*.?*", "*ß*.Note"), ("*.Tags", "sales.*.Amount"))
    cut = column_filter.apply_to_batch(batch)
    assert cut.schema == SCHEMA
    filtered = cut.to_pylist()
    assert filtered == [column_filter.apply_to_row(row) for row in batch.to_pylist()]
    new_values = {row["table_name"]: row["mods"][0]["new_values"] for row in filtered}
    assert new_values["Orders"] == '{"Item": "a, \\"b\\"","Amount":1.50,"Note":null}'
    assert new_values["sales.Orders"] == '{"Item": "a, \\"b\\""}'
    assert ColumnFilter().apply_to_batch(batch) is batch


def test_rows_and_batches_keep_the_same_changes() -> None:
    texts = ("{}", '{"Item": {"Tags": 1}}', '{"Not\\u0065" : null,"x":1}', "")
    captures = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES", "NEW_ROW")
    rows = [
        change(table, kind, capture, mods)
        for table in TABLES
        for kind in ModType
        for capture in captures[: 3 if kind is ModType.UPDATE else 4]
        for mods in ([(a, b), (b, b)] for a, b in itertools.product(texts, repeat=2))
    ]
    globs = (("*Orders.Note",), ("Orders.*", "*ß*.It?m"), ("*.Tags",))
    filters = [RecordFilter(when_changed=of_filter) for of_filter in globs]
    updates = [
        len([row for row in of_filter if row["mod_type"] == "UPDATE"])
        for of_filter in agreed(rows, filters)
    ]
    assert updates[0] > 0
    assert updates[1] > 0
    assert updates[2] == 0


def test_a_batch_with_an_update_that_does_not_tell_what_it_changed_is_refused() -> None:
    record_filter = RecordFilter(when_changed=("Orders.Note",))
    unknown = change("Orders", ModType.UPDATE, "NEW_ROW", [('{"Note": 1}', "{}")])
    batch = pa.RecordBatch.from_pylist([unknown])
    with pytest.raises(UnknownChangesError):
        record_filter.mask(batch)
    assert replace(record_filter, exclude_tables=("Or*",)).mask(batch).to_pylist() == [False]


def change(
    table: str, kind: ModType, capture: str, mods: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return a record, with new values and old values of each mod."""
    texts = [{"keys": "{}", "new_values": new, "old_values": old} for new, old in mods]
    return {
        "table_name": table,
        "mod_type": str(kind),
        "value_capture_type": capture,
        "mods": texts,
        **NO_TRANSACTION,
    }


def agreed(
    rows: Sequence[dict[str, Any]], filters: Sequence[RecordFilter]
) -> list[list[dict[str, Any]]]:
    """Return for each filter the rows that it keeps, by Python and by Arrow."""
    records = pa.RecordBatch.from_pylist(list(rows))
    kept_rows = []
    for record_filter in filters:
        decided = [record_filter.keeps(row) for row in rows]
        assert record_filter.mask(records).to_pylist() == decided
        kept_rows.append(list(itertools.compress(rows, decided)))
    return kept_rows
