"""Tables without a catalog's server: each in a folder, whose metadata files have numbers.

The names are those of Hadoop's catalog, which any reader of Iceberg has that reads tables by their
place: `metadata/v12.metadata.json`, and the number of the latest in `metadata/version-hint.text`.
Unlike there, a file is created only if its name is free, on a disk as in an object store. So of two
processes one commits.

Old files are removed in ascending order. A process that was frozen for so long that its number is
free again finds that the file before, which it had read, is gone.
"""

import logging
import os
import posixpath
import re
import time
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from obstore.exceptions import BaseError
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from slackwater.spark_sink.errors import ObjectStoreError, SinkError
from slackwater.spark_sink.output.iceberg.store_io import StoreIO, local_path_of
from slackwater.spark_sink.output.object_store import ObjectFiles, is_object_store
from slackwater.spark_sink.output.small_files import LocalFiles

_log = logging.getLogger(__name__)

_FOLDER: Final = "metadata"
_HINT: Final = "version-hint.text"
_NAME: Final = re.compile(r"v(\d+)\.metadata\.json")
# The latest metadata files stay, however old, for readers that have an earlier one.
_STAYING: Final = 100


class FolderCatalog(NoopCatalog):
    """A catalog of the only table of a folder, under any identifier.

    Args:
        location: the folder, absolute, or a URL.
        options: of an object store; see open_object_store().
    """

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        super().__init__("folder")
        self.location = location
        self._io = StoreIO({}, options)
        self._files: LocalFiles | ObjectFiles = (
            ObjectFiles(location, options, _FOLDER)
            if is_object_store(location)
            else LocalFiles(local_path_of(location) / _FOLDER)
        )

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """Return the table as it is now.

        Raises:
            NoSuchTableError: there is none.
        """
        number = self._latest()
        if number is None and self._files.read(_HINT) is not None:
            raise ObjectStoreError(
                f"{self.location} has a hint, but no metadata file such as {_name(1)}.",
                "Remove write.metadata.compression-codec from the table, or restore the file",
            )
        if number is None:
            raise NoSuchTableError(f"there is no table in {self.location}")
        place = self._place(number)
        metadata = FromInputFile.table_metadata(self._io.new_input(place))
        return self._table(identifier, metadata, place)

    def create_table(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Table:
        """Create the table.

        Raises:
            TableAlreadyExistsError: it is there.
        """
        del location
        made: Schema = self._convert_schema_if_needed(schema)
        metadata = new_table_metadata(
            made, partition_spec, sort_order, self.location, dict(properties)
        )
        if not self._create(1, metadata):
            raise TableAlreadyExistsError(f"there is a table in {self.location}")
        return self._table(identifier, metadata, self._place(1))

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Make a table's next metadata, which follow those that it was loaded with.

        Raises:
            CommitFailedException: another process has committed since.
        """
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(
            table.metadata, updates, metadata_location=table.metadata_location
        )
        # Readers refuse a table whose metadata are not in the order of their times.
        at_ms = max(metadata.last_updated_ms, table.metadata.last_updated_ms)
        metadata = metadata.model_copy(update={"last_updated_ms": at_ms})
        number = _number_of(table.metadata_location.rpartition("/")[2]) or 0
        if not self._create(number + 1, metadata):
            raise CommitFailedException(f"another process has committed to {self.location}")
        answer = {"metadata": metadata, "metadata-location": self._place(number + 1)}
        return CommitTableResponse.model_validate(answer)

    def remove_old_metadata(self, keep_s: float) -> None:
        """Remove metadata files that no reader begins to read any more.

        Args:
            keep_s: seconds for which a file that was replaced stays.
        """
        before_s = time.time() - keep_s
        written = self._written_s()
        for number, following in pairwise(sorted(written)[: 1 - _STAYING]):
            # It was replaced when the next one was written.
            if written[following] >= before_s:
                break
            self._files.remove([_name(number)])

    def _written_s(self) -> dict[int, float]:
        """Return by number when metadata files were written, in seconds since the Unix epoch."""
        if is_object_store(self.location):
            store, folder = self._io.place(f"{self.location}/{_FOLDER}")
            files = [
                (item["path"], item["last_modified"].timestamp())
                for page in store.list(f"{folder}/")
                for item in page
            ]
        else:
            with os.scandir(local_path_of(self.location) / _FOLDER) as entries:
                files = [(entry.path, entry.stat().st_mtime) for entry in entries]
        numbers = {_number_of(posixpath.basename(path)): written_s for path, written_s in files}
        return {number: written_s for number, written_s in numbers.items() if number is not None}

    def _create(self, number: int, metadata: TableMetadata) -> bool:
        """Create a metadata file; return False if another process has, or is far ahead."""
        text = metadata.model_dump_json(exclude_none=True)
        if self._files.create(_name(number), text, is_durable=True) is None:
            return False
        is_next = self._files.tag(_name(number - 1)) if number > 1 else self._is_first()
        if not is_next:
            self._files.remove([_name(number)])
            return False
        try:
            self._hint_at(number)
        except (BaseError, OSError, SinkError) as error:
            # The commit is made; readers that use the hint see the version before.
            _log.warning("%s: the hint at version %s failed: %s", self.location, number, error)
        return True

    def _hint_at(self, number: int) -> None:
        """Write the hint, which names the latest file even if others have written it meanwhile."""
        latest: int | None = number
        while latest is not None:
            with self._io.new_output(f"{self.location}/{_FOLDER}/{_HINT}").create() as hint:
                hint.write(str(latest).encode())
            following = latest + 1
            latest = following if self._files.tag(_name(following)) is not None else None

    def _is_first(self) -> bool:
        """Return whether the first metadata file, which is there, is the only one."""
        names = self._files.names()
        return _HINT not in names and [n for n in map(_number_of, names) if n is not None] == [1]

    def _latest(self) -> int | None:
        """Return the number of the latest metadata file: the hint may be of one before it."""
        hint = self._files.read(_HINT)
        number = int(hint) if hint and hint.strip().isdigit() else None
        if number is None or self._files.tag(_name(number)) is None:
            number = max(filter(None, map(_number_of, self._files.names())), default=None)
        while number is not None and self._files.tag(_name(number + 1)) is not None:
            number += 1
        return number

    def _table(
        self, identifier: str | tuple[str, ...], metadata: TableMetadata, place: str
    ) -> Table:
        return Table(self.identifier_to_tuple(identifier), metadata, place, self._io, self)

    def _place(self, number: int) -> str:
        return f"{self.location}/{_FOLDER}/{_name(number)}"


def _name(number: int) -> str:
    return f"v{number}.metadata.json"


def _number_of(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
