"""The rows of a Delta table's files, in the columns that the table has now."""

import json
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
from deltalake import Schema

from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta import deletion_vectors
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.features import maps_columns
from slackwater.spark_sink.output.delta.snapshot import Snapshot
from slackwater.spark_sink.output.rows_of_files import in_columns, without


class DeltaRows:
    """The rows of one version.

    Args:
        data: the table's files.
        snapshot: the version.

    Attributes:
        schema: the columns of the files: all but those of partitions.
    """

    def __init__(self, data: DataFolder, snapshot: Snapshot) -> None:
        self._data = data
        self._snapshot = snapshot
        columns = arrow_columns(snapshot)
        self.schema = pa.schema(
            [column for column in columns if column.name not in snapshot.partition_columns]
        )

    def read(self, name: str, columns: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a file, deleted ones too, and the position of the first of them.

        Args:
            name: the file's.
            columns: some of the table's, which may have come later than the file.

        Raises:
            ObjectStoreError: a column has another name or type now.
            PublishError: the file is gone, or the store fails.
        """
        first = 0
        with self._data.opened(name, self._snapshot.files[name]["size"]) as file:
            own = file.schema_arrow.names
            own_names = {*self.schema.names, *self._snapshot.partition_columns}
            others = set(own) - own_names
            # Where columns are mapped, they may have been dropped.
            if others and not maps_columns(self._snapshot.properties):
                columns_of = f"the columns {', '.join(sorted(others))} in {name}"
                raise unsupported(self._data.path, [columns_of])
            present = [column.name for column in columns if column.name in own]
            for number in range(file.num_row_groups):
                rows = self._in_columns(file.read_row_group(number, present), columns)
                yield first, rows
                first += rows.num_rows

    def _in_columns(self, rows: pa.Table, columns: pa.Schema) -> pa.Table:
        """Return rows in a table's columns; those that they lack are NULL."""
        try:
            return in_columns(rows, columns)
        except pa.ArrowException as error:
            raise unsupported(self._data.path, [f"columns that have changed: {error}"]) from error

    def former_values(self, names: Collection[str]) -> list[str]:
        """Return the files with columns that the table does not have, such as dropped ones.

        Args:
            names: those of the columns.
        """
        listed = []
        for name, added in self._snapshot.files.items():
            with self._data.opened(name, added["size"]) as file:
                there = (set(names) - set(self.schema.names)) & set(file.schema_arrow.names)
            listed += [f"values of a former column {one} in {name}" for one in sorted(there)]
        return listed

    def count(self, name: str) -> int:
        """Return the number of rows of a file, with deleted ones."""
        with self._data.opened(name, self._snapshot.files[name]["size"]) as file:
            return int(file.metadata.num_rows)

    def deleted_positions(self, name: str) -> pa.Array | None:
        """Return the positions of a file's deleted rows; None for none.

        Raises:
            ObjectStoreError: the marks can't be read.
            PublishError: they are missing, or the store fails.
        """
        return deleted_positions(self._data, self._snapshot.files[name])

    def without_deleted(self, name: str, first: int, rows: pa.Table) -> pa.Table:
        """Return the rows that are not deleted of those that read() has yielded."""
        return without(rows, first, self.deleted_positions(name))


def deleted_positions(data: DataFolder, added: Any) -> pa.Array | None:
    """Return the positions of a file's deleted rows; see DeltaRows.deleted_positions().

    Args:
        data: the table's files.
        added: the content of the action that added the file.
    """
    vector = added.get("deletionVector")
    if vector is None:
        return None
    try:
        return deletion_vectors.positions(vector, data.require)
    except ValueError as error:
        raise unsupported(data.path, [str(error)]) from error


def arrow_columns(snapshot: Snapshot) -> pa.Schema:
    """Return a table's columns as Arrow has them, without the metadata in its log."""
    schema = json.loads(snapshot.schema_json)
    for column in schema["fields"]:
        column["metadata"] = {}
    made: pa.Schema = pa.schema(Schema.from_json(json.dumps(schema)).to_arrow())
    return made
