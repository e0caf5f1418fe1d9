"""Tables in an object store, as a pipeline writes them and another library reads them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.epoch_rows import make_sink
from tests.support.handed_on import Tasks
from tests.support.object_stores import ServedStore
from tests.support.read_tables import iceberg_at


@dataclass
class TablesInStore:
    """A folder with the tables of a sink.

    Attributes:
        kind: of the sink.
        path: the folder's URL.
        format: of the tables.
    """

    kind: ClassVar[str]

    spark: SparkSession
    store: ServedStore
    path: str
    format: str = "delta"

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[2]

    def sink(self, **settings: Any) -> Any:
        options = self.store.options
        return make_sink(
            self.path, kind=self.kind, format=self.format, storage_options=options, **settings
        )

    def owner(self, **settings: Any) -> tuple[Any, Tasks]:
        """Return a sink of a new process, and its tasks."""
        sink = self.sink(**settings)
        sink.position(self.spark)
        return sink, Tasks(sink, self.spark)

    def table(self, name: str, version: int | None = None) -> pa.Table:
        """Return a table's rows as another library reads them."""
        if self.format == "iceberg":
            table = iceberg_at(f"{self.path}/{name}", self.store.options)
            return table.scan(snapshot_id=version).to_arrow()
        return DeltaTable(f"{self.path}/{name}", version, self.store.options).to_pyarrow_table()

    def staged(self) -> list[str]:
        """Return the names of the objects that are staged."""
        return self.store.names(f"{self.folder}/_staging/")
