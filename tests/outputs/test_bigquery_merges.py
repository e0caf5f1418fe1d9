"""A transaction in BigQuery leaves the rows that a merge of files does, however often it runs."""

import io
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud import bigquery

from slackwater.spark_sink.output.bigquery.schema import fields_of
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.in_bigquery.merge import (
    TABLES_MAX,
    StagedRows,
    TableMerge,
    first_mark,
    in_transactions,
    marked,
    staged_changes,
    table_merge,
    transaction,
)
from slackwater.spark_sink.tables.row_merges.file_merge import FileMerge
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_changes import MergePolicy
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, bigquery_server
from tests.support.merged_tables import (
    AT,
    CLEARED,
    COLUMNS,
    MARKS,
    SCHEMA,
    File,
    drawn,
    latest_of,
    plain,
    rows_of,
)

MARKS_TABLE = f"{PROJECT}.{DATASET}._slackwater"


@pytest.fixture(scope="module")
def server() -> Iterator[BigQueryServer]:
    with bigquery_server() as server:
        server.query(
            f"CREATE TABLE `{MARKS_TABLE}` (pipeline STRING, low_watermark TIMESTAMP,"
            " chunk STRING, incomplete ARRAY<STRING>, transactions INT64)"
        )
        yield server


class Mirror:
    """A mirror in BigQuery, and the same in a file."""

    def __init__(self, server: BigQueryServer, schema: pa.Schema, *, is_late: bool = False) -> None:
        self._server = server
        self.is_late = is_late
        self.pipeline = uuid.uuid4().hex
        self.id = f"{PROJECT}.{DATASET}.m_{self.pipeline}"
        self.number = 0
        self._schema = schema
        self._file = File(schema.empty_table(), is_small=True, may_be_marked=False)
        server.client.create_table(bigquery.Table(self.id, fields_of(schema)))
        self.run(first_mark(MARKS_TABLE, self.pipeline))
        self.run(first_mark(MARKS_TABLE, self.pipeline))

    def merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> str:
        """Merge into the file, and return the transaction of the epoch in BigQuery."""
        merge = FileMerge([self._file], self._schema, rows, columns, policy, 50)
        written = [rows.select(self._schema.names) for rows in merge.rows()]
        there = self._file.current()
        tables = [pa.Table.from_pylist(there, self._schema), *written]
        self._file = File(pa.concat_tables(tables), is_small=True, may_be_marked=False)
        staged = None if rows is None else self._staged(staged_changes(rows, columns))
        self.number += 1
        return self.transaction(table_merge(self.id, staged, rows, columns, policy))

    def transaction(self, merge: TableMerge) -> str:
        return transaction(
            [merge], MARKS_TABLE, self.pipeline, self.number * 1_000_000, is_late=self.is_late
        )

    def _staged(self, rows: pa.Table) -> StagedRows:
        staged = StagedRows(f"{self.id}_{uuid.uuid4().hex}", "this", 1_000_000, rows.num_rows)
        made = marked(rows, staged)
        self._server.client.create_table(bigquery.Table(staged.table, fields_of(made.schema)))
        file = io.BytesIO()
        pq.write_table(made, file)
        file.seek(0)
        config = bigquery.LoadJobConfig(
            source_format="PARQUET", schema=self._server.client.get_table(staged.table).schema
        )
        self._server.client.load_table_from_file(file, staged.table, job_config=config).result()
        return staged

    def run(self, text: str) -> None:
        self._server.client.query(text).result()

    def require_equal(self) -> None:
        rows = self._server.query(f"SELECT * FROM `{self.id}`")
        assert sorted(map(plain, rows)) == sorted(map(plain, rows_of([self._file])))


@pytest.mark.parametrize("are_kept", [pytest.param(False, marks=pytest.mark.long), True])
def test_random_epochs_leave_the_rows_of_a_merge_of_files(
    server: BigQueryServer, are_kept: bool
) -> None:
    choose = random.Random(5)
    mirror = Mirror(server, pa.schema([*SCHEMA, *(MARKS.items() if are_kept else ())]))
    scripts: list[str] = []
    for _ in range(25):
        policy = MergePolicy(are_kept, choose.choice([None, None, None, CLEARED]))
        is_absent = choose.random() < 0.2
        columns = [
            replace(column, absent_at=AT) if column.name == "B" and is_absent else column
            for column in COLUMNS
        ]
        rows = latest_of(drawn(choose)) if choose.random() < 0.9 else None
        scripts.append(mirror.merge(rows, columns, policy))
        mirror.run(scripts[-1])
        mirror.require_equal()
        # A second attempt, or a former owner that wakes up.
        mirror.run(choose.choice(scripts))
        mirror.require_equal()


def test_a_table_without_a_key_has_one_row(server: BigQueryServer) -> None:
    columns = [column for column in COLUMNS if not column.is_key]
    mirror = Mirror(server, pa.schema({"A": pa.string(), "B": pa.string()}))
    for values in ({"A": "x", "B": "y"}, {"A": "z", "B": None}):
        rows = latest_of({1: ("whole", values)}).drop_columns(["Id"])
        mirror.run(mirror.merge(rows, columns, MergePolicy(are_kept=False)))
        mirror.require_equal()
    mirror.run(mirror.merge(latest_rows({}, columns), columns, MergePolicy(are_kept=False)))
    mirror.require_equal()


def test_rows_that_are_gone_are_not_taken_for_none(server: BigQueryServer) -> None:
    mirror = Mirror(server, SCHEMA, is_late=True)
    policy = MergePolicy(are_kept=False)
    text = mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    staged = next(part for part in text.split("`") if part.startswith(f"{mirror.id}_"))
    server.query(f"DELETE FROM `{staged}` WHERE TRUE")
    with pytest.raises(Exception, match="are gone"):
        mirror.run(text)
    assert server.query(f"SELECT * FROM `{mirror.id}`") == []


def test_merges_are_divided_as_transactions_take_them() -> None:
    narrow = [TableMerge(f"p.d.t{number}", ["Id"]) for number in range(2 * TABLES_MAX + 1)]
    assert [len(step) for step in in_transactions(narrow)] == [TABLES_MAX, TABLES_MAX, 1]
    assert in_transactions([]) == [[]]
    names = [f"column_{number:04}_{'x' * 20}" for number in range(1_000)]
    staged = StagedRows("p.d.s", "this", 1, 1)
    wide = [TableMerge(f"p.d.t{n}", names, updated=names, staged=staged) for n in range(8)]
    steps = in_transactions(wide)
    assert [merge for step in steps for merge in step] == wide
    assert all(len(transaction(step, "p.d.m", "orders", 7)) < 1_000_000 for step in steps)
    assert len(steps) > 1


def test_one_of_two_transactions_at_a_time_fails_by_the_row_that_each_updates() -> None:
    for chunk in (None, "epoch=1.000001/1"):
        text = transaction([], "p.d.m", "orders", 7, chunk=chunk)
        begun = text.partition("BEGIN TRANSACTION;\n")[2]
        assert begun.startswith("UPDATE `p.d.m` SET transactions = ")
