"""Mirrors in Delta, which Spark writes to Cloud Storage by Hadoop's connector."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs

from slackwater.reader.change_stream import ChangeStream, Dialect
from tests import fake_gcs, mixed_load
from tests.fake_gcs import JsonCloudStorage
from tests.mirrors import Looker
from tests.mixed_load import MixedLoad
from tests.object_stores import BUCKET
from tests.outputs.output import TRANSACTIONS_PER_SECOND, Output, Place

_TABLES: Final = "tables"
_CHECKPOINT: Final = "checkpoint"


class DeltaMirror(Output):
    """Mirrors and their checkpoint in Cloud Storage."""

    store: JsonCloudStorage
    moments = (
        # The first request of an upload names the object.
        ("POST", "_delta_log/"),
        ("POST", "part-"),
        ("GET", "_delta_log/"),
        ("POST", f"{_CHECKPOINT}/offsets"),
        ("POST", f"{_CHECKPOINT}/commits"),
        ("POST", "_watermarks"),
        # A rename, which is a copy here.
        ("POST", "/rewriteTo/"),
    )
    change_stream = mixed_load.CHANGE_STREAM

    def __init__(self, place: Place, store: JsonCloudStorage) -> None:
        super().__init__(place)
        self.store = store
        self._is_postgresql = place.dialect is Dialect.POSTGRESQL
        self._looker: Looker | None = None
        self._copy = place.folder / "copy"

    def statements(self) -> Sequence[str]:
        """Return the database's schema."""
        capture = "NEW_ROW" if self._is_postgresql else "OLD_AND_NEW_VALUES"
        return mixed_load.ddl(self._dialect, capture)

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            "kind": "mirror",
            "path": f"{self.store.path}/{_TABLES}",
            "checkpoint": f"{self.store.path}/{_CHECKPOINT}",
            "deletes": "mark" if self._is_postgresql else "apply",
        }

    def spark_conf(self) -> Mapping[str, str]:
        """Return spark.conf of the settings."""
        return {**self.store.spark_conf, "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED"}

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
            self._looker = Looker(self._copy, stream, self._dialect, fetch=self._fetch)
        return self._looker

    def _fetch(self, table: str) -> None:
        """Copy what is new of a mirror: its files do not change, but for one hint."""
        files, root = self.store.files(), f"{BUCKET}/{_TABLES}/"
        selector = pafs.FileSelector(root + table, recursive=True, allow_not_found=True)
        for info in files.get_file_info(selector):
            copy = self._copy / info.path.removeprefix(root)
            if info.is_file and (not copy.exists() or copy.name == "_last_checkpoint"):
                _download(files, info.path, copy)


def _download(files: pafs.FileSystem, path: str, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    with files.open_input_stream(path) as stream:
        copy.write_bytes(stream.read())


@contextmanager
def delta_mirror(place: Place) -> Iterator[Output]:
    """Serve the store of mirrors in Delta."""
    assert place.store == "gs", "mirrors are written to gs: Delta in S3 needs a log store"
    with fake_gcs.cloud_storage() as store:
        yield DeltaMirror(place, store)
