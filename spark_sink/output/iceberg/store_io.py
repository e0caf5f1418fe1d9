"""Files of Iceberg tables, by the client that writes everything else.

So a pipeline has one kind of credentials and one client that retries: obstore.
"""

import io
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from obstore.store import ObjectStore
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import Table

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.object_store import etag, is_object_store, open_object_store
from slackwater.spark_sink.output.object_store import read as read_object

# The options of open_object_store() by Iceberg's properties.
_OPTIONS: Final[Mapping[str, str]] = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "client.region": "aws_region",
    "s3.region": "aws_region",
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.auth.shared-key.account.name": "azure_storage_account_name",
    "adls.auth.shared-key.account.key": "azure_storage_account_key",
}
# Files that never change: lists of files, and files of rows.
_IMMUTABLE: Final = (".avro", ".parquet")
# In bytes: of an object that is kept in memory, and of all of them.
_CACHED_MAX: Final = 1 << 20
_CACHE_MAX: Final = 64 << 20
_CLOUD_STORAGE: Final = "gcs.service.host"
_LOCAL: Final = "file:"


class _Cache:
    """The objects of all tables that were read or written last.

    A commit reads the files that the one before it has written.
    """

    def __init__(self) -> None:
        # The latest is the last.
        self._contents: dict[str, bytes] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> bytes | None:
        """Return the content of an object; None if it is not here."""
        with self._lock:
            if (content := self._contents.pop(location, None)) is not None:
                self._contents[location] = content
            return content

    def keep(self, location: str, content: bytes) -> None:
        """Add an object, unless it is large or may change."""
        if not location.endswith(_IMMUTABLE) or len(content) > _CACHED_MAX:
            return
        with self._lock:
            self._size += len(content) - len(self._contents.pop(location, b""))
            self._contents[location] = content
            while self._size > _CACHE_MAX:
                self._size -= len(self._contents.pop(next(iter(self._contents))))


_cache: Final = _Cache()


class StoreIO(FileIO):
    """pyiceberg's FileIO over the disk and obstore.

    Args:
        properties: of the catalog and the table.
        options: see open_object_store(); None to make them of the properties.
    """

    def __init__(
        self, properties: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(dict(properties or {}))
        self.options = store_options(self.properties) if options is None else dict(options)
        self._stores: dict[str, ObjectStore] = {}

    def new_input(self, location: str) -> InputFile:
        """Return a file to read; see FileIO."""
        return _Input(location, self)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write; see FileIO."""
        return _Output(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; see FileIO."""
        name = location if isinstance(location, str) else location.location
        if is_object_store(name):
            store, key = self.place(name)
            store.delete(key)
        else:
            local_path_of(name).unlink()

    def read(self, location: str) -> bytes:
        """Return the content of an object, which may be kept in memory.

        Raises:
            FileNotFoundError: it does not exist.
        """
        if (content := _cache.get(location)) is not None:
            return content
        store, name = self.place(location)
        if (content := read_object(store, name)) is None:
            raise FileNotFoundError(location)
        _cache.keep(location, content)
        return content

    def write(self, location: str, content: bytes) -> None:
        """Write an object."""
        store, name = self.place(location)
        store.put(name, content, use_multipart=False)
        _cache.keep(location, content)

    def place(self, location: str) -> tuple[ObjectStore, str]:
        """Return the store of a URL, and its name there."""
        parts = urlsplit(location)
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._stores:
            self._stores[root] = open_object_store(root, self.options)
        return self._stores[root], parts.path.lstrip("/")


class _Input(InputFile):
    def __init__(self, location: str, files: StoreIO) -> None:
        super().__init__(location)
        self._files = files
        self._bytes: bytes | None = None

    def __len__(self) -> int:
        return len(self._content())

    def exists(self) -> bool:
        """Return whether there is such a file."""
        if not is_object_store(self.location):
            return local_path_of(self.location).exists()
        store, name = self._files.place(self.location)
        return etag(store, name) is not None

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002 - of FileIO
        """Return the file's content as a stream."""
        if not is_object_store(self.location):
            return local_path_of(self.location).open("rb")
        return io.BytesIO(self._content())

    def _content(self) -> bytes:
        # Not a cached_property: that has one lock for all files (Python 3.11).
        if self._bytes is None:
            self._bytes = self._read()
        return self._bytes

    def _read(self) -> bytes:
        if not is_object_store(self.location):
            return local_path_of(self.location).read_bytes()
        return self._files.read(self.location)


class _Output(OutputFile):
    def __init__(self, location: str, files: StoreIO) -> None:
        super().__init__(location)
        self._files = files
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def exists(self) -> bool:
        """Return whether there is such a file."""
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        """Return the file, to read it."""
        return self._files.new_input(self.location)

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002 - as above
        """Return a stream whose content is the file's when it is closed. No name is used twice."""
        return _Written(self, self._files)


class _Written(io.BytesIO):
    def __init__(self, file: _Output, files: StoreIO) -> None:
        super().__init__()
        self._file = file
        self._files = files

    def close(self) -> None:
        """Write the content."""
        if not self.closed:
            content = self.getvalue()
            self._file.size = len(content)
            if is_object_store(self._file.location):
                self._files.write(self._file.location, content)
            else:
                path = local_path_of(self._file.location)
                path.parent.mkdir(parents=True, exist_ok=True)
                # Readers find all of it, or the file that was there before.
                unfinished = path.with_name(f".{uuid.uuid4().hex}")
                with unfinished.open("wb") as out:
                    out.write(content)
                    out.flush()
                    # The folder entry survives a power cut.
                    os.fsync(out.fileno())
                unfinished.replace(path)
        super().close()


def files_of(table: Table) -> StoreIO:
    """Return the FileIO of a table in one of TablePlace's catalogs."""
    files = table.io
    assert isinstance(files, StoreIO)  # noqa: S101 - these have no other
    return files


def local_path_of(location: str) -> Path:
    """Return a location on a disk as a path: of file:/x, file:///x or /x.

    Raises:
        ObjectStoreError: it is elsewhere.
    """
    if location.startswith(_LOCAL):
        return Path("/" + location.removeprefix(_LOCAL).lstrip("/"))
    if "://" in location:
        raise ObjectStoreError(
            f"{location} is neither on a local disk nor in an object store that is known.",
            "Have the catalog's warehouse on S3, Cloud Storage or Azure",
        )
    return Path(location)


def store_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of open_object_store() for properties of a catalog or a table.

    The environment supplies the rest.
    """
    options = {_OPTIONS[name]: value for name, value in properties.items() if name in _OPTIONS}
    if host := properties.get(_CLOUD_STORAGE):
        options["google_base_url"] = host
    if properties.get("gcs.no-auth") == "true":
        options["google_skip_signature"] = "true"
    if any(value.startswith("http://") for value in options.values()):
        options["allow_http"] = "true"
    return options
