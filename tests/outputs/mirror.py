"""Mirrors in Delta in an object store, and in Iceberg's REST catalog."""

import abc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs

from slackwater.reader.change_stream import ChangeStream, Dialect
from tests.outputs.in_catalog import InCatalog
from tests.outputs.output import TRANSACTIONS_PER_SECOND, Output, Place
from tests.support import mixed_load
from tests.support.mirror_looks import Looker
from tests.support.mixed_load import MixedLoad
from tests.support.object_stores import BUCKET, STORES, Azure, ServedStore
from tests.support.rest_catalog import rest_catalog

_TABLES: Final = "tables"


class Mirror(Output):
    """Mirrors of the tables of tests.support.mixed_load."""

    change_stream = mixed_load.CHANGE_STREAM

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._is_postgresql = place.dialect is Dialect.POSTGRESQL
        self._looker: Looker | None = None

    def statements(self) -> Sequence[str]:
        """Return the database's schema."""
        capture = "NEW_ROW" if self._is_postgresql else "OLD_AND_NEW_VALUES"
        return mixed_load.ddl(self._dialect, capture)

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {"kind": "mirror", "deletes": "mark" if self._is_postgresql else "apply"}

    def write(self, stream: ChangeStream, seed: int, stop: threading.Event) -> None:
        """Change the database until it is stopped."""
        load = MixedLoad(stream, self._dialect, seed=seed)
        while not stop.is_set():
            load.transaction()
            time.sleep(1 / TRANSACTIONS_PER_SECOND)

    def look(self, stream: ChangeStream) -> None:
        """Compare each mirror that has advanced, at the low watermark that it states."""
        self._looker_of(stream).look_now()

    def require_equal(self, stream: ChangeStream, start_ns: int, end_ns: int) -> int:
        """Compare the mirrors with the tables as they are now, and return the number of rows."""
        del start_ns, end_ns
        return self._looker_of(stream).look_at_the_end()

    def _looker_of(self, stream: ChangeStream) -> Looker:
        if self._looker is None:
            self._looker = self._new_looker(stream)
        return self._looker

    @abc.abstractmethod
    def _new_looker(self, stream: ChangeStream) -> Looker:
        """Return what compares the mirrors with their tables."""


class DeltaMirror(Mirror):
    """Mirrors in an object store, into which the driver merges.

    There is no checkpoint beside them: a service on another machine has to do without the last one.

    Args:
        store: the object store.
        path: its URL.
    """

    moments = (
        ("PUT", "/part-"),
        ("PUT", "_delta_log/0"),
        ("GET", "_delta_log/"),
        ("PUT", "_watermarks/"),
        ("PUT", ".checkpoint.parquet"),
        ("PUT", "_last_checkpoint"),
    )

    def __init__(self, place: Place, store: ServedStore, path: str) -> None:
        super().__init__(place)
        self.store = store
        self._path = f"{path}/{_TABLES}"
        self._copy = place.folder / "copy"

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            **super().sink(),
            "path": self._path,
            "storage_options": self.store.options,
        }

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return Looker(self._copy, stream, self._dialect, fetch=self._fetch)

    def _fetch(self, table: str) -> None:
        """Copy what is new of a mirror: its files do not change, but for one hint."""
        files, root = self.store.files(), f"{BUCKET}/{_TABLES}/"
        selector = pafs.FileSelector(root + table, recursive=True, allow_not_found=True)
        for info in files.get_file_info(selector):
            copy = self._copy / info.path.removeprefix(root)
            if info.is_file and (not copy.exists() or copy.name == "_last_checkpoint"):
                _download(files, info.path, copy)


class IcebergMirror(InCatalog, Mirror):
    """Mirrors in a REST catalog, whose requests are among the store's."""

    moments = (
        ("PUT", "/data/"),
        # Manifests and their list. Not what the catalog writes: of an upload that is held longer
        # than its client waits, fake-gcs-server makes an object without content.
        ("PUT", ".avro"),
        ("POST", "transactions/commit"),
        ("POST", "/tables/"),
        ("GET", "/tables/"),
        ("GET", "/snap-"),
    )

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {**Mirror.sink(self), **self.sink_at(_TABLES)}

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return Looker(self._place.folder / _TABLES, stream, self._dialect, self._catalog)


def _download(files: pafs.FileSystem, path: str, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with files.open_input_stream(path) as stream:
        copy.write_bytes(stream.read())


@contextmanager
def delta_mirror(place: Place) -> Iterator[Output]:
    """Serve the store of mirrors in Delta."""
    with STORES[place.store]() as store:
        # The usual URL there.
        path = store.hadoop_path if isinstance(store, Azure) else store.path
        yield DeltaMirror(place, store, path)


@contextmanager
def iceberg_mirror(place: Place) -> Iterator[Output]:
    """Serve the catalog of mirrors in Iceberg, and the store in which they are."""
    with rest_catalog(place.folder, place.store) as catalog:
        yield IcebergMirror(place, catalog)
