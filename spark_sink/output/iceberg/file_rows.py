"""The rows of a table's data files, in the columns that the table has now."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slackwater.spark_sink.output.iceberg.store_io import StoreIO, local_path_of
from slackwater.spark_sink.output.object_store import is_object_store

FIELD_ID: Final = b"PARQUET:field_id"
# In bytes: of a larger object only the parts that are needed are fetched.
_IN_MEMORY_MAX: Final = 16 << 20
_PATH: Final = "file_path"
_POSITION: Final = "pos"


class UnreadableFileError(Exception):
    """A file does not say which columns of the table it has; the message says why."""


@contextmanager
def opened(files: StoreIO, location: str, size: int) -> Iterator[pq.ParquetFile]:
    """Open a file.

    Args:
        files: how files are reached.
        location: the file's.
        size: in bytes.
    """
    if not is_object_store(location):
        source: Any = pa.memory_map(str(local_path_of(location)))
    elif size > _IN_MEMORY_MAX:
        source = obstore.open_reader(*files.place(location))
    else:
        source = files.new_input(location).open()
    with source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        yield file


def rows_of_file(file: pq.ParquetFile, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file, a row group at a time.

    Columns are told apart by their identifiers (Iceberg's specification, "Column Projection"): they
    may have had other names when the file was written, or may have come later.

    Args:
        file: the file.
        columns: some of the table's, by with_field_ids().

    Raises:
        UnreadableFileError: its columns have no identifiers, or a part of one had another name.
    """
    names = _names_by_id(file.schema_arrow, columns)
    present = [names[field.metadata[FIELD_ID]] for field in columns if _id(field) in names]
    for number in range(file.num_row_groups):
        rows = file.read_row_group(number, present)
        arrays = [
            _cast(rows.column(names[field.metadata[FIELD_ID]]), field)
            if _id(field) in names
            else pa.nulls(rows.num_rows, field.type)
            for field in columns
        ]
        yield pa.Table.from_arrays(arrays, schema=columns)


def deleted_positions(
    files: StoreIO, deletes: Iterable[tuple[str, int]], location: str
) -> pa.Array | None:
    """Return the positions of a file's rows that delete files name; None for none.

    Args:
        files: how files are reached.
        deletes: the locations of delete files, and their sizes.
        location: the data file's.
    """
    arrays = []
    for place, size in deletes:
        with opened(files, place, size) as file:
            read = file.read([_PATH, _POSITION])
            is_of_file = pc.equal(read.column(_PATH).cast(pa.string()), location)
            arrays += read.filter(is_of_file).column(_POSITION).chunks
    return pa.concat_arrays(arrays) if arrays else None


def _id(field: pa.Field) -> bytes | None:
    value: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return value


def _names_by_id(of_file: pa.Schema, columns: pa.Schema) -> dict[bytes | None, str]:
    """Return the names of a file's columns by their identifiers."""
    by_id = {_id(field): field for field in of_file}
    if None in by_id:
        raise UnreadableFileError("a file's columns have no identifiers")
    for field in columns:
        if (present := by_id.get(_id(field))) is not None:
            _require_same_parts(present.type, field.type)
    return {field_id: field.name for field_id, field in by_id.items()}


def _require_same_parts(in_file: pa.DataType, wanted: pa.DataType) -> None:
    """Require that the parts of a column that both have go by the same names."""
    parts = {_id(part): part for part in _parts(in_file)}
    for part in _parts(wanted):
        present = parts.get(_id(part))
        by_name = [other for other in parts.values() if other.name == part.name]
        if (present is None and by_name) or (present is not None and present.name != part.name):
            raise UnreadableFileError(f"a part of a column, {part.name}, had another name")
        if present is not None:
            _require_same_parts(present.type, part.type)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _parts(kind.value_type)
    return []


def _cast(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise UnreadableFileError(f"the column {field.name} has changed: {error}") from error
