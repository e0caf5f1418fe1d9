"""The rows that a mirror replaces and deletes, and how they are written for BigQuery."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.column_types import spark_type
from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.output.bigquery.upsert_stream import descriptor_of, serialized_rows
from slackwater.spark_sink.tables.in_bigquery.mirroring import require_primary_key
from slackwater.spark_sink.tables.in_bigquery.upserted_mirror import changes_of
from slackwater.spark_sink.tables.row_merges.file_merge import FileMerge
from slackwater.spark_sink.tables.table_changes import MergePolicy
from tests.support.bigquery import message_class
from tests.support.merged_tables import AT, CLEARED, COLUMNS, SCHEMA, File, latest_of

BIGQUERYS = {"BYTES(MAX)": "BYTES", "FLOAT64": "FLOAT"}
WRITTEN = ("Id", "text", "bytes", "is_set", "fee", "tags", "tags1", "tags_1", "column_11")
TEXTS = st.sampled_from([None, "x", "y"])
VALUES = st.fixed_dictionaries({"A": TEXTS, "B": TEXTS})
CHANGES = st.dictionaries(
    st.integers(0, 5), st.tuples(st.sampled_from(["delete", "whole"]), VALUES), max_size=6
)


@given(
    there=st.dictionaries(st.integers(0, 5), VALUES, max_size=6),
    changes=st.none() | CHANGES,
    cleared=st.booleans(),
    absent=st.booleans(),
)
def test_they_leave_the_rows_of_a_merge_of_files(
    there: Mapping[int, Mapping[str, Any]],
    changes: Mapping[int, tuple[str, Mapping[str, Any]]] | None,
    cleared: bool,
    absent: bool,
) -> None:
    rows = None if changes is None else latest_of(changes)
    columns = [replace(c, absent_at=AT) if absent and c.name == "B" else c for c in COLUMNS]
    policy = MergePolicy(False, CLEARED if cleared else None)
    present = pa.Table.from_pylist([{"Id": key, **there[key]} for key in there], SCHEMA)
    changes_of_others = present if cleared or absent else None
    mirror = {row["Id"]: row for row in present.to_pylist()}
    for table in changes_of(rows, changes_of_others, columns, policy):
        for row in table.to_pylist():
            if row.pop("_CHANGE_TYPE") == "DELETE":
                mirror.pop(row["Id"], None)
            else:
                mirror[row["Id"]] = {"B": None, **row}
    file = File(present, is_small=True, may_be_marked=False)
    merge = FileMerge([file], SCHEMA, rows, columns, policy, 50)
    written = [row for table in merge.rows() for row in table.to_pylist()]
    expected = {row["Id"]: row for row in [*file.current(), *written]}
    assert {key: dict(sorted(row.items())) for key, row in mirror.items()} == {
        key: dict(sorted(row.items())) for key, row in expected.items()
    }


def test_a_row_is_written_as_bigquery_takes_its_types_and_names() -> None:
    time = datetime(2026, 1, 31, 9, 0, 0, 123456, UTC)
    row = {
        "Id": -5,
        "text": "ü",
        "bytes": b"\0\xff",
        "is_set": False,
        "fee": 0.25,
        "day": date(1969, 12, 31),
        "at": time,
        "price": Decimal("-12.345000000"),
        "prices": [Decimal("0E-9"), Decimal("1E-9")],
        "tags": ["a", ""],
        "größe x": "L",
        "none": None,
    }
    types = {
        "Id": pa.int64(),
        "bytes": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(38, 9),
        "prices": pa.list_(pa.decimal128(38, 9)),
        "none": pa.string(),
        # Protobuf's JSON has one name for both.
        "tags1": pa.string(),
        "tags_1": pa.string(),
    }
    row |= {"tags1": "x", "tags_1": "y", "column_11": "z"}
    batch = pa.RecordBatch.from_arrays(
        [pa.array([value], types.get(name)) for name, value in row.items()], list(row)
    )
    descriptor = descriptor_of(batch.schema)
    make = message_class(descriptor)
    [message] = [make.FromString(data) for data in serialized_rows(descriptor, batch)]
    sent = {field.name: value for field, value in message.ListFields()}
    assert sent == {
        **{name: row[name] for name in WRITTEN},
        "day": -1,
        "at": int(time.timestamp()) * 1_000_000 + 123456,
        "price": "-12.345000000",
        "prices": ["0.000000000", "0.000000001"],
        "column__11": "L",
    }


@pytest.mark.parametrize(
    ("types", "what"),
    [
        ([], "has 0 columns"),
        (["INT64"] * 17, "has 17 columns"),
        (["INT64", "BYTES(MAX)"], "has C1"),
        (["FLOAT64"], "has C0"),
    ],
)
def test_a_key_that_no_primary_key_can_be_is_refused(types: list[str], what: str) -> None:
    for dialect in (spark_type, lambda kind: BIGQUERYS.get(kind, "INTEGER")):
        key = {f"C{number}": dialect(kind) for number, kind in enumerate(types)}
        with pytest.raises(BigQueryError, match=f"table sales.Orders: its key {what}"):
            require_primary_key("sales.Orders", key)
        require_primary_key("sales.Orders", {"Id": dialect("INT64")})
