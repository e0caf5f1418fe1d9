"""The content of many small files in a large one."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from slackwater.grouping import groups_by_size
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import ORC, PARQUET
from slackwater.spark_sink.output.file_writer import format_writer
from slackwater.spark_sink.output.parquet_stats import exact_columns

# In bytes of Arrow: the size of a row group.
_ROW_GROUP: Final = 64 << 20
_COPIED: Final = 1 << 20
_FORMATS: Final = (PARQUET, ORC)


def write_merged(files: Sequence[Path], folder: Path) -> None:
    """Write the content of files to a new file, or to one for each schema that they have.

    Args:
        files: of one format, in their order.
        folder: gets the new ones; it exists, and is empty.

    Raises:
        PublishError: the files have several formats.
        OSError: the disk is full, or refuses.
    """
    suffix = _suffix(files[0])
    if any(_suffix(file) != suffix for file in files):
        raise PublishError(f"{folder}: the files have several formats.")
    file_format = _format_of(suffix)
    if file_format is None:
        _concatenate(files, folder / f"part-00000{suffix}")
        return
    for number, tables in enumerate(_of_one_schema(files, file_format)):
        merged = folder / f"part-{number:05d}.{file_format}"
        with merged.open("xb") as out:
            with closing(format_writer(out, file_format)) as writer:
                for table in _in_row_groups(tables):
                    writer.write(table)
            out.flush()
            os.fsync(out.fileno())


def schema_of(file: Path) -> pa.Schema | None:
    """Return the columns of a file, without their metadata; None if it has lines."""
    file_format = _format_of(_suffix(file))
    return None if file_format is None else _schema(file, file_format)


def _format_of(suffix: str) -> str | None:
    """Return the format of files with columns; None of others, which have lines."""
    return next((name for name in _FORMATS if suffix.endswith(name)), None)


def _suffix(file: Path) -> str:
    """Return a name from its format on: Spark puts the compression before it, or after it."""
    return "".join(file.suffixes[-2:]) if file.suffix in {".gz", ".bz2"} else file.suffix


def _concatenate(files: Sequence[Path], merged: Path) -> None:
    """Write lines one after the other; so can compressed files be that Spark writes as text."""
    with merged.open("xb") as out:
        for file in files:
            with file.open("rb") as source:
                shutil.copyfileobj(source, out, _COPIED)
        out.flush()
        os.fsync(out.fileno())


def _of_one_schema(files: Sequence[Path], file_format: str) -> Iterator[Iterator[pa.Table]]:
    """Yield the tables of adjacent files that have the same schema."""
    pending = list(files)
    while pending:
        schema = _schema(pending[0], file_format)
        end = next(
            (n for n, file in enumerate(pending) if not _schema(file, file_format).equals(schema)),
            len(pending),
        )
        yield (table for file in pending[:end] for table in _tables(file, file_format))
        del pending[:end]


def _schema(file: Path, file_format: str) -> pa.Schema:
    if file_format == PARQUET:
        return pq.read_schema(file).remove_metadata()
    return orc.ORCFile(file).schema.remove_metadata()


def _tables(file: Path, file_format: str) -> Iterator[pa.Table]:
    if file_format == PARQUET:
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        parts: Any = (opened.read_row_group(n) for n in range(opened.num_row_groups))
    else:
        stripes = orc.ORCFile(file)
        parts = (pa.table(stripes.read_stripe(n)) for n in range(stripes.nstripes))
    for table in parts:
        yield table.replace_schema_metadata()


def write_table_file(path: Path, columns: pa.Schema, tables: Iterator[pa.Table]) -> pq.FileMetaData:
    """Write the rows of a table's small files to a large one, and return its statistics.

    Args:
        path: of the Parquet file, which is made.
        columns: the file's.
        tables: rows, in these columns.
    """
    footers: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        path,
        columns,
        compression="zstd",
        write_page_checksum=True,
        metadata_collector=footers,
        write_statistics=exact_columns(columns),
    ) as writer:
        for rows in _in_row_groups(tables):
            writer.write_table(rows)
    [footer] = footers
    return footer


def _in_row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables that are large enough for a row group each, made of small ones."""
    return map(pa.concat_tables, groups_by_size(tables, lambda table: table.nbytes, _ROW_GROUP))


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable: the small files are removed after it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
