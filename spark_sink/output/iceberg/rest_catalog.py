"""Iceberg's REST catalog, by pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import rest
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT

from slackwater.spark_sink.output.iceberg.store_io import StoreIO


class RestCatalog(rest.RestCatalog):
    """A REST catalog, whose tables have StoreIO.

    A catalog may name another FileIO for each table, as Nessie does.
    """

    def _load_file_io(
        self,
        properties: Mapping[str, str] = EMPTY_DICT,
        location: str | None = None,  # noqa: ARG002 - it has one for all
    ) -> FileIO:
        return StoreIO({**self.properties, **properties})
