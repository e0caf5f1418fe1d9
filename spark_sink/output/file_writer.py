"""The files of an epoch, written by tasks from Arrow: handed to the driver, or staged.

In an object store those that are large are staged, and on a local disk all.
"""

from __future__ import annotations

import base64
import io
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from slackwater.spark_sink.formats import JSON, ORC, PARQUET, TEXT
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output.object_store import is_object_store, open_object_store
from slackwater.spark_sink.output.parquet_stats import exact_columns, stats_text
from slackwater.spark_sink.output.staged_file import (
    IN_MEMORY_MAX,
    LocalFile,
    SpillingFile,
    StagedFile,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyspark.sql import DataFrame

# The rows that a task hands on, as a schema of Spark's.
RESULT: Final = "folder string, content binary, staged string, size long, stats string"
RESULT_SCHEMA: Final = pa.schema(
    {
        "folder": pa.string(),
        "content": pa.binary(),
        "staged": pa.string(),
        "size": pa.int64(),
        "stats": pa.string(),
    }
)
# In bytes of Arrow, of all files that a task has open.
_ROW_GROUP: Final = 32 << 20
# A larger file is followed by another one: S3 copies no more than 5 GiB at once.
_FILE_MAX: Final = 1 << 30
# Those that Spark escapes in the names of folders.
_ESCAPED: Final = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
# Hive's name of a value that is NULL or empty.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of an epoch that is not visible yet.

    Attributes:
        folder: inside the epoch's, such as date=2026-01-31; empty for the epoch's itself.
        content: the whole file; None if it is staged.
        staged: its name in the object store, or in the folder on a local disk; None if it is in
            neither.
        size: in bytes.
        stats: of a staged Parquet file; see stats_text().
    """

    folder: str
    content: bytes | None
    staged: str | None
    size: int = 0
    stats: str | None = None


@dataclass(frozen=True, slots=True)
class FileWriter:
    """A writer of one task's rows; write() is for DataFrame.mapInArrow with the schema RESULT.

    Attributes:
        path: the output's URL, or a folder on a local disk, which is made if it is missing.
        options: see open_object_store().
        prefix, suffix: how the names of staged files begin and end, such as a folder and a slash.
        file_format: parquet, orc, json, or text, of which each row's value is a line.
        partition_by: columns that name folders and are not in the files.
        hands_on: whether small files go to an object store only if the driver has them go there.
        columns: those of the files, by schema_text(); empty for those of the rows.
        keeps_partition_columns: whether the files have the columns that name folders, too.
    """

    path: str
    options: Mapping[str, str]
    prefix: str
    file_format: str
    partition_by: tuple[str, ...] = ()
    suffix: str = ""
    hands_on: bool = True
    columns: str = ""
    keeps_partition_columns: bool = False

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all batches, and yield a row for each file.

        Raises:
            PublishError: the local disk refuses.
        """
        # Opened by the first large file only.
        store = cache(partial(open_object_store, self.path, self.options))
        columns = parse_schema(self.columns) if self.columns else None
        files: dict[str, _OpenFile] = {}
        in_memory = 0
        for batch in batches:
            for folder, rows in self._by_folder(pa.Table.from_batches([batch])):
                if folder not in files:
                    files[folder] = _OpenFile(self._sink(store), self.file_format, columns)
                files[folder].add(rows)
                if files[folder].size > _FILE_MAX:
                    yield _result(folder, files.pop(folder), is_staged=True)
            if sum(file.pending for file in files.values()) >= _ROW_GROUP:
                for file in files.values():
                    file.flush()
        for folder, file in files.items():
            is_staged = not self.hands_on or in_memory > IN_MEMORY_MAX
            result = _result(folder, file, is_staged=is_staged)
            in_memory += result.nbytes
            yield result

    def _sink(self, store: Callable[[], ObjectStore]) -> StagedFile:
        name = f"{self.prefix}{uuid.uuid4().hex}{self.suffix}"
        if is_object_store(self.path):
            return SpillingFile(store, name)
        return LocalFile(self.path, name)

    def _by_folder(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not self.partition_by:
            yield "", table
            return
        columns = list(self.partition_by)
        for values in table.group_by(columns).aggregate([]).to_pylist():
            matches = [
                pc.equal(table[name], value) if value is not None else pc.is_null(table[name])
                for name, value in values.items()
            ]
            mask = matches[0]
            for match in matches[1:]:
                mask = pc.and_(mask, match)
            folder = "/".join(f"{name}={_escaped(values[name])}" for name in columns)
            rows = table.filter(mask)
            yield folder, rows if self.keeps_partition_columns else rows.drop_columns(columns)


def _result(folder: str, file: _OpenFile, *, is_staged: bool) -> pa.RecordBatch:
    """Return the row of a file, with its content if it is small and need not be staged."""
    sink, stats = file.close()
    content, staged = sink.close_and_name(is_staged=is_staged)
    written = WrittenFile(folder, content, staged, sink.tell(), stats if staged else None)
    return pa.RecordBatch.from_pylist([asdict(written)], RESULT_SCHEMA)


def written_files(result: pa.Table) -> list[WrittenFile]:
    """Return the files that the tasks handed on."""
    return [WrittenFile(**fields) for fields in result.to_pylist()]


def written_by_tasks(frame: DataFrame, writer: FileWriter) -> list[WrittenFile]:
    """Have tasks write a frame's rows, and return the files that they handed on."""
    return written_files(map_in_arrow(frame, writer.write, RESULT).toArrow())


def written_files_of(writer: FileWriter, rows: pa.Table) -> list[WrittenFile]:
    """Write rows here, and return the files; none for no rows."""
    results = list(writer.write(rows.to_batches()))
    return written_files(pa.Table.from_batches(results, RESULT_SCHEMA))


def merge_files(files: Sequence[WrittenFile], file_format: str) -> list[tuple[str, bytes]]:
    """Return one file for each folder, with the rows of all; their contents are in memory."""
    by_folder: defaultdict[str, list[bytes]] = defaultdict(list)
    for file in files:
        by_folder[file.folder].append(file.content or b"")
    return [(folder, _merged(by_folder[folder], file_format)) for folder in sorted(by_folder)]


def _merged(contents: Sequence[bytes], file_format: str) -> bytes:
    if len(contents) == 1:
        return contents[0]
    if file_format == TEXT:
        return b"".join(contents)
    read = pq.read_table if file_format == PARQUET else orc.read_table
    buffer = io.BytesIO()
    with closing(format_writer(buffer, file_format)) as writer:
        writer.write(pa.concat_tables(read(io.BytesIO(content)) for content in contents))
    return buffer.getvalue()


def folder_values(folder: str) -> dict[str, str | None]:
    """Return the columns and values that name a folder; a value that is NULL or empty is None."""
    parts = [part.partition("=") for part in folder.split("/") if part]
    return {name: None if text == _NULL else unquote(text) for name, _, text in parts}


def _escaped(value: object) -> str:
    text = "" if value is None else str(value)
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text) or _NULL


class _OpenFile:
    """A file that grows by tables."""

    def __init__(self, sink: StagedFile, file_format: str, columns: pa.Schema | None) -> None:
        self._sink = sink
        self._writer = format_writer(sink, file_format, columns)
        self._tables: list[pa.Table] = []
        # In bytes: of rows that are not written yet.
        self.pending = 0

    @property
    def size(self) -> int:
        """The bytes that are written."""
        return self._sink.tell()

    def add(self, table: pa.Table) -> None:
        """Add rows; flush() makes a row group of them."""
        self._tables.append(table)
        self.pending += table.nbytes

    def close(self) -> tuple[StagedFile, str | None]:
        """Write the last rows, and return the open file and the statistics of a Parquet file."""
        self.flush()
        return self._sink, self._writer.close()

    def flush(self) -> None:
        """Write the rows that were added."""
        if self._tables:
            self._writer.write(pa.concat_tables(self._tables))
        self._tables, self.pending = [], 0


class _Lines:
    """A writer of lines: of the column value, or of rows in JSON."""

    def __init__(self, sink: Any, file_format: str) -> None:
        self._sink = sink
        self._file_format = file_format

    def write(self, table: pa.Table) -> None:
        if self._file_format == JSON:
            lines = [_json(row) for row in table.to_pylist()]
        else:
            lines = [(value or "").encode() for value in table["value"].to_pylist()]
        self._sink.write(b"".join(line + b"\n" for line in lines))

    def close(self) -> None:
        """Leave the file open: its content is taken from it. There are no statistics."""


def _json(row: Mapping[str, Any]) -> bytes:
    """Return a row as Spark writes it in JSON: without members that are NULL."""
    options = orjson.OPT_PASSTHROUGH_DATETIME
    return orjson.dumps(_without_nulls(row), default=_json_text, option=options)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _json_text(value: datetime | bytes) -> str:
    """Return a time in UTC, with six decimals as the order of changes needs them, or base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def format_writer(sink: Any, file_format: str, columns: pa.Schema | None = None) -> Any:
    """Return a writer of tables, which writes the end of the file when it is closed.

    Args:
        sink: a file that is written to.
        file_format: parquet, orc, json, or text, of which each row's value is a line.
        columns: those of a Parquet file; None for those of the first table.
    """
    if file_format in (JSON, TEXT):
        return _Lines(sink, file_format)
    return _Orc(sink) if file_format == ORC else _Parquet(sink, columns)


def schema_text(columns: pa.Schema) -> str:
    """Return columns as a text."""
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def parse_schema(text: str) -> pa.Schema:
    """Return the columns of a text."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


class _Orc:
    """A writer of ORC with the types that Spark's own files have."""

    def __init__(self, sink: Any) -> None:
        self._writer = orc.ORCWriter(sink, compression="zstd")

    def write(self, table: pa.Table) -> None:
        """Write a stripe."""
        # Spark can't read ORC's timestamps with a time zone; without one they are UTC's.
        fields = [
            field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
            for field in table.schema
        ]
        self._writer.write(table.cast(pa.schema(fields)))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class _Parquet:
    """A writer of Parquet; without columns the schema is that of the first table."""

    def __init__(self, sink: Any, columns: pa.Schema | None) -> None:
        self._sink = sink
        self._columns = columns
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []

    def write(self, table: pa.Table) -> None:
        """Write a row group."""
        if self._writer is None:
            # As in Spark's files, the checksums reveal the damage of a broken disk.
            columns = self._columns or table.schema
            self._writer = pq.ParquetWriter(
                self._sink,
                columns,
                metadata_collector=self._footers,
                write_page_checksum=True,
                write_statistics=exact_columns(columns),
            )
        self._writer.write_table(table.select(self._writer.schema.names))

    def close(self) -> str | None:
        """Write the footer, and return the file's statistics."""
        if self._writer is None:
            return None
        self._writer.close()
        return stats_text(self._footers[0])
