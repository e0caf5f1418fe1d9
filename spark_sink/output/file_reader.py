"""The files of a staged epoch, read by tasks: Spark needs no connector for what tasks have written.

A file that a successor has removed makes a task fail; none is skipped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import missing_files
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output.file_writer import (
    RESULT_SCHEMA,
    FileWriter,
    WrittenFile,
    written_files,
)
from slackwater.spark_sink.output.object_store import (
    download,
    is_object_store,
    open_object_store,
    read,
)
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.output.rows_of_files import in_columns, without

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# In bytes: a larger object is copied to a disk first.
_IN_MEMORY_MAX: Final = 16 << 20
# In rows: as Spark hands them over.
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class FileReader:
    """A reader of the Parquet files that a FileWriter has written.

    Attributes:
        path, options: see FileWriter.
        schema: of the rows; None for a file's.
        deleted: the positions of rows that are left out, by the names of files.
        within: rows that are not in this range may be left out; None for no range.
    """

    path: str
    options: Mapping[str, str]
    schema: pa.Schema | None = None
    deleted: Mapping[str, pa.Array] = field(default_factory=dict)
    within: RowRange | None = None

    @classmethod
    def of(cls, writer: FileWriter) -> FileReader:
        """Return the reader of a writer's files."""
        return cls(writer.path, writer.options)

    def frame(
        self, spark: SparkSession, files: Sequence[WrittenFile], schema: StructType
    ) -> DataFrame:
        """Return the rows of files.

        Args:
            spark: the session.
            files: as tasks wrote them.
            schema: of the rows. A file may have more columns; one that it lacks is NULL.
        """
        if not files:
            return spark.createDataFrame([], schema)
        reader = replace(self, schema=arrow_schema_of(schema))
        return map_in_arrow(spark.createDataFrame(_listed(files)), reader.read, schema)

    def table(self, files: Sequence[WrittenFile]) -> pa.Table:
        """Return the rows of files, read here, in the columns of the schema.

        Raises:
            PublishError: see read().
        """
        return pa.Table.from_batches(self.batches(files), self.schema)

    def batches(self, files: Sequence[WrittenFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files, read here; see read()."""
        return self.read(_listed(files).to_batches())

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files that batches of RESULT_SCHEMA name.

        Raises:
            PublishError: one is gone.
        """
        store = cache(partial(open_object_store, self.path, self.options))
        for file in (file for batch in batches for file in _files(batch)):
            with self._opened(file, store) as source:
                deleted = self.deleted.get(file.staged or "")
                opened = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
                for first, batch in _rows(opened, self.schema, self.within):
                    yield without(batch, first, deleted)

    @contextmanager
    def _opened(self, file: WrittenFile, store: Callable[[], ObjectStore]) -> Iterator[Any]:
        name = file.staged or ""
        if file.content is not None:
            yield pa.BufferReader(file.content)
        elif not is_object_store(self.path):
            path = Path(self.path, name)
            if not path.exists():
                raise self._missing_error(name)
            yield path
        elif file.size <= _IN_MEMORY_MAX:
            if (content := read(store(), name)) is None:
                raise self._missing_error(name)
            yield pa.BufferReader(content)
        else:
            with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
                try:
                    [copy] = download(store(), [name], Path(folder))
                except FileNotFoundError as error:
                    raise self._missing_error(name) from error
                yield copy

    def _missing_error(self, name: str) -> Exception:
        return missing_files(f"{name} in {self.path}, a task's file, is not there.")


def _listed(files: Sequence[WrittenFile]) -> pa.Table:
    return pa.Table.from_pylist([asdict(file) for file in files], RESULT_SCHEMA)


def _files(batch: pa.RecordBatch) -> Sequence[WrittenFile]:
    return written_files(pa.Table.from_batches([batch]))


def _rows(
    file: pq.ParquetFile, schema: pa.Schema | None, within: RowRange | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a file's rows in some columns, each with the place of the first of them."""
    first = 0
    is_same = schema is None or schema.equals(file.schema_arrow)
    names = None if schema is None or is_same else _present(schema, file)
    for number in range(file.num_row_groups):
        group, place = file.metadata.row_group(number), first
        first += group.num_rows
        if within is not None and not _may_have(group, within):
            continue
        for batch in file.iter_batches(_BATCH, row_groups=[number], columns=names):
            yield place, batch if schema is None or is_same else in_columns(batch, schema)
            place += batch.num_rows


def _present(schema: pa.Schema, file: pq.ParquetFile) -> list[str]:
    return [name for name in schema.names if name in file.schema_arrow.names]


def _may_have(group: pq.RowGroupMetaData, within: RowRange) -> bool:
    """Return whether a part of a file may have rows in a range."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == within.column:
            bounds = column.statistics
            if bounds is None or not bounds.has_min_max:
                return True
            return within.may_have(bounds.min, bounds.max, bounds.null_count)
    return True
