"""The files of a table, on a local disk or in an object store."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.spark_sink.errors import PublishError, missing_files
from slackwater.spark_sink.output.merged_files import sync
from slackwater.spark_sink.output.object_store import (
    is_object_store,
    open_object_store,
    read,
    remove,
    requests_to,
)
from slackwater.spark_sink.output.small_files import without_scheme

# In bytes: of a larger object only the parts that are needed are fetched.
_IN_MEMORY_MAX: Final = 16 << 20


class DataFolder:
    """The folder of one table's files.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().

    Attributes:
        path: as given.
    """

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self.path = path
        is_in_store = is_object_store(path)
        self._store = open_object_store(path, options) if is_in_store else None
        self._folder = Path() if is_in_store else Path(without_scheme(path))

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        with self._translating():
            if self._store is not None:
                return read(self._store, name)
            file = self._folder / name
            return file.read_bytes() if file.exists() else None

    def require(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            PublishError: it does not exist.
        """
        content = self.read(name)
        if content is None:
            raise self._missing_error(name)
        return content

    def add(self, name: str, content: bytes | Path) -> None:
        """Add a file, which survives a power cut.

        Args:
            name: the file's, which no other has.
            content: the same, or where it is.
        """
        with self._translating():
            if self._store is not None:
                self._store.put(name, content)
                return
            file = self._folder / name
            file.parent.mkdir(exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, file)
            else:
                file.write_bytes(content)
            sync(file)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that no commit names."""
        with self._translating():
            if self._store is not None:
                remove(self._store, names)
                return
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def opened(self, name: str, size: int) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file.

        Args:
            name: the file's.
            size: in bytes.

        Raises:
            PublishError: it is gone, or the store fails.
        """
        import obstore

        source: Any
        try:
            if self._store is None:
                source = pa.memory_map(str(self._folder / name))
            elif size > _IN_MEMORY_MAX:
                source = obstore.open_reader(self._store, name)
            else:
                source = pa.BufferReader(self.require(name))
        except FileNotFoundError as error:
            raise self._missing_error(name) from error
        with (
            self._translating(),
            source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file,
        ):
            yield file

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Turn the errors of the disk or the store into a PublishError."""
        with requests_to(self.path):
            try:
                yield
            except OSError as error:
                raise PublishError(f"{self.path}: its files can't be reached: {error}.") from error

    def _missing_error(self, name: str) -> Exception:
        return missing_files(f"{name} in {self.path} is not there.")
