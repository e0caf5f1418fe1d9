"""A mirror in a database whose epochs are transactions, and the same in a file."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.by_transaction.transaction_access import TransactionAccess
from slackwater.spark_sink.tables.by_transaction.transaction_log import TransactionLog
from slackwater.spark_sink.tables.in_ducklake.ducklake_access import DuckLakeAccess
from slackwater.spark_sink.tables.in_ducklake.ducklake_log import DuckLakeLog
from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
from slackwater.spark_sink.tables.row_merges.file_merge import FileMerge
from slackwater.spark_sink.tables.table_changes import MergeId, MergePolicy
from tests.support.epoch_rows import low_watermark
from tests.support.merged_tables import COLUMNS, File, plain, rows_of

PIPELINE = "slackwater orders"
_EPOCHS = itertools.count(1)


def next_epoch() -> datetime:
    """Return the low watermark of an epoch after all others."""
    return low_watermark(next(_EPOCHS))


class MergedMirror:
    """A mirror in a database, and the same in a file."""

    def __init__(
        self, log: TransactionLog[Any], schema: pa.Schema, columns: Sequence[Column] = COLUMNS
    ) -> None:
        self._log = log
        self._schema = schema
        self._file = File(schema.empty_table(), is_small=True, may_be_marked=False)
        self.name = f'Order "{uuid.uuid4().hex}"'
        made: Callable[..., TransactionAccess[Any]] = (
            DuckLakeAccess if isinstance(log, DuckLakeLog) else PostgresqlAccess
        )
        self.access = made(log, TableAddress(None, self.name))
        self.access.make(schema, {"slackwater.table": "Orders"}, columns)

    def merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Merge an epoch into the file, and by a transaction into the database."""
        merge = FileMerge([self._file], self._schema, rows, columns, policy, 50)
        written = [rows.select(self._schema.names) for rows in merge.rows()]
        there = pa.Table.from_pylist(self._file.current(), self._schema)
        table = pa.concat_tables([there, *written])
        self._file = File(table, is_small=True, may_be_marked=False)
        self.commit(rows, columns, policy)

    def commit(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Merge an epoch into the database."""
        at = next_epoch()
        with self._log.committing(at, None, is_stated=False, incomplete=[]):
            self.access.merge(rows, columns, MergeId(PIPELINE, at), policy)

    def require_equal(self) -> None:
        """Require that both have the same rows."""
        with self._log.reader.batches(f"SELECT * FROM {self.access.name}") as batches:
            rows = batches.read_all().to_pylist()
        assert sorted(map(plain, rows)) == sorted(map(plain, rows_of([self._file])))
