"""Changelogs in one table, whose latest version a reader has: in Delta, and in Iceberg."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from slackwater.reader.change_stream import ChangeStream
from slackwater.timestamp import datetime_to_rfc3339
from tests.outputs.in_catalog import InCatalog
from tests.outputs.output import FOLDER, Changelog, Output, Place, epoch_id, logged_records
from tests.support.object_stores import BUCKET, STORES, ServedStore
from tests.support.rest_catalog import rest_catalog

_LOW_WATERMARK: Final = "low_watermark"


class TableChangelog(Changelog):
    """A changelog in one table, whose rows say which epoch they are of."""

    def look_at(self, rows: pa.Table, logged: Mapping[str, int]) -> None:
        """Count each epoch's rows, of which all are in the table or none."""
        for epoch, count in Counter(_epochs(rows)).items():
            self.note(epoch, count, logged.get(epoch))


class DeltaChangelog(TableChangelog):
    """A changelog that delta-rs commits."""

    moments = (
        ("PUT", "/part-"),
        ("PUT", "_delta_log/"),
        ("GET", "_delta_log/"),
        ("PUT", "_watermarks/"),
        ("PUT", ".checkpoint.parquet"),
    )

    def __init__(self, place: Place, store: ServedStore) -> None:
        super().__init__(place)
        self.store = store
        self._path = f"{store.path}/{FOLDER}"

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {"path": self._path, "format": "delta", "storage_options": self.store.options}

    def look(self, stream: ChangeStream) -> None:
        """Read the table's latest version."""
        del stream
        try:
            table = DeltaTable(self._path, storage_options=self.store.direct_options)
        except TableNotFoundError:
            return
        rows = table.to_pyarrow_table(columns=[_LOW_WATERMARK])
        self.look_at(rows, logged_records(self.store.files(), f"{BUCKET}/{FOLDER}"))

    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""
        copy = self._place.folder / "copy"
        self.store.download(FOLDER, copy)
        return with_epochs(DeltaTable(copy).to_pyarrow_table())


@contextmanager
def delta_changelog(place: Place) -> Iterator[Output]:
    """Serve the store of a changelog in Delta."""
    with STORES[place.store]() as store:
        yield DeltaChangelog(place, store)


class IcebergChangelog(InCatalog, TableChangelog):
    """A changelog in a REST catalog, whose requests are among the store's."""

    moments = (
        ("PUT", "/data/"),
        # Manifests and their list. Not what the catalog writes: of an upload that is held longer
        # than its client waits, fake-gcs-server makes an object without content.
        ("PUT", ".avro"),
        ("POST", f"/tables/{FOLDER}"),
        ("GET", f"/tables/{FOLDER}"),
        ("GET", "/snap-"),
    )

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return self.sink_at(FOLDER)

    def look(self, stream: ChangeStream) -> None:
        """Read the table's latest version."""
        del stream
        table = self._catalog.table(FOLDER)
        if table is None or table.current_snapshot() is None:
            return
        rows = table.scan(selected_fields=(_LOW_WATERMARK,)).to_arrow()
        logged = logged_records(pafs.LocalFileSystem(), str(self._place.folder / FOLDER))
        self.look_at(rows, logged)

    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""
        table = self._catalog.table(FOLDER)
        assert table is not None, "no table was written"
        return with_epochs(table.scan().to_arrow())


@contextmanager
def iceberg_changelog(place: Place) -> Iterator[Output]:
    """Serve the catalog of a changelog in Iceberg, and the store in which its table is."""
    with rest_catalog(place.folder, place.store) as catalog:
        yield IcebergChangelog(place, catalog)


def _epochs(rows: pa.Table) -> list[str]:
    times = map(datetime_to_rfc3339, rows[_LOW_WATERMARK].to_pylist())
    return list(map(epoch_id, times))


def with_epochs(rows: pa.Table) -> pa.Table:
    """Return rows with the epoch of each in the column epoch."""
    return rows.append_column("epoch", [_epochs(rows)])
