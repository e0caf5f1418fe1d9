"""Changelogs in folders, one for each epoch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from slackwater.reader.change_stream import ChangeStream
from slackwater.testing.compare import read_changelog
from tests.outputs.output import (
    FOLDER,
    Changelog,
    Output,
    Place,
    logged_records,
    names_in,
)
from tests.proofs.sinks import from_json
from tests.support.object_stores import BUCKET, STORES, ServedStore

_ROOT: Final = f"{BUCKET}/{FOLDER}"


class EpochFiles(Changelog):
    """A changelog in Parquet or JSON."""

    moments = (
        ("PUT", "_commits/"),
        ("HEAD", "_commits/"),
        ("PUT", "epoch="),
        ("PUT", "_watermarks/"),
        ("DELETE", "_commits/"),
    )

    def __init__(self, place: Place, store: ServedStore) -> None:
        super().__init__(place)
        self.store = store

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            "path": f"{self.store.path}/{FOLDER}",
            "format": self._place.file_format,
            "storage_options": self.store.options,
        }

    def look(self, stream: ChangeStream) -> None:
        """Read, by the documented recipe, the epochs that are complete."""
        del stream
        files = self.store.files()
        logged = logged_records(files, _ROOT)
        last = max(logged, default="")
        for epoch in self._epochs(files):
            if epoch <= last and epoch not in self._seen:
                self.note(epoch, self._count(files, epoch), logged.get(epoch))

    def _count(self, files: pafs.FileSystem, epoch: str) -> int:
        folder = f"{_ROOT}/epoch={epoch}"
        if self._place.file_format == "json":
            paths = names_in(files, folder)
            return sum(files.open_input_stream(path).read().count(b"\n") for path in paths)
        rows: int = ds.dataset(folder, filesystem=files, format="parquet").count_rows()
        return rows

    def _epochs(self, files: pafs.FileSystem) -> list[str]:
        names = (path.rpartition("epoch=") for path in names_in(files, _ROOT))
        return [name for _, separator, name in names if separator]

    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""
        copy = self._place.folder / "copy"
        self.store.download(FOLDER, copy)
        return from_json(copy) if self._place.file_format == "json" else read_changelog(copy)


@contextmanager
def epoch_files(place: Place) -> Iterator[Output]:
    """Serve the store of a changelog in Parquet or JSON."""
    with STORES[place.store]() as store:
        yield EpochFiles(place, store)
