"""What outputs in Iceberg's REST catalog share: where they are, and how Spark reaches them."""

from collections.abc import Mapping
from typing import Any

from tests.outputs.output import Output, Place
from tests.support.rest_catalog import ServedCatalog


class InCatalog(Output):
    """Tables in a REST catalog, whose requests are among the store's."""

    def __init__(self, place: Place, catalog: ServedCatalog) -> None:
        super().__init__(place)
        self.store = catalog.store
        self._catalog = catalog

    def sink_at(self, folder: str) -> Mapping[str, Any]:
        """Return what the section sink of the settings has, with a folder for its log."""
        return {
            "path": str(self._place.folder / folder),
            "checkpoint": str(self._place.folder / "checkpoint"),
            "format": "iceberg",
            "catalog": self._catalog.setting,
        }

    def spark_conf(self) -> Mapping[str, str]:
        """Return spark.conf of the settings."""
        return self._catalog.spark_conf
