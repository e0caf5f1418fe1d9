"""A changelog in BigQuery, whose commits are on a disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from google.api_core.exceptions import NotFound

from slackwater.reader.change_stream import ChangeStream
from slackwater.timestamp import datetime_to_rfc3339
from tests.outputs.changelog_tables import TableChangelog, with_epochs
from tests.outputs.output import Output, Place, epoch_id, logged_records
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door, bigquery_server
from tests.support.object_stores import ServedStore

_TABLE = f"`{PROJECT}.{DATASET}.changes`"


class BigQueryChangelog(TableChangelog):
    """Rows that the Storage Write API shows."""

    moments = (("AppendRows", ""), ("FlushRows", ""), ("CreateWriteStream", ""))

    def __init__(self, place: Place, server: BigQueryServer, door: Door) -> None:
        super().__init__(place)
        # Its requests are held back, as those to an object store are.
        self.store = cast("ServedStore", door)
        self._server, self._door = server, door
        self._checkpoint = place.folder / "checkpoint"

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            "format": "bigquery",
            "path": f"bq://{PROJECT}/{DATASET}",
            "checkpoint": str(self._checkpoint),
            "storage_options": self._server.options(self._door),
        }

    def look(self, stream: ChangeStream) -> None:
        """Count the rows of each epoch."""
        del stream
        try:
            counted = self._server.query(
                f"SELECT low_watermark, COUNT(*) AS n FROM {_TABLE} GROUP BY low_watermark"
            )
        except NotFound:
            return
        logged = logged_records(pafs.LocalFileSystem(), f"{self._checkpoint}-log")
        for row in counted:
            epoch = epoch_id(datetime_to_rfc3339(row["low_watermark"]))
            self.note(epoch, row["n"], logged.get(epoch))

    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""
        job = self._server.client.query(f"SELECT * FROM {_TABLE}")
        return with_epochs(job.to_arrow(create_bqstorage_client=False))


@contextmanager
def bigquery_changelog(place: Place) -> Iterator[Output]:
    """Serve the table of a changelog in BigQuery."""
    with bigquery_server() as server, server.door() as door:
        yield BigQueryChangelog(place, server, door)
