"""Where changelogs in tables are: on a disk or in a bucket."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.spark_sink.sink import Sink
from tests.support.epoch_rows import make_sink
from tests.support.object_stores import ServedStore
from tests.support.read_tables import files_at, rows_at


@dataclass(frozen=True)
class Place:
    """Where tables are: a folder, or the URL of a bucket and the store that has it."""

    root: str
    store: ServedStore | None = None
    format: str = "delta"

    @property
    def options(self) -> dict[str, str]:
        """The options of the store's client."""
        return self.store.options if self.store else {}

    def sink(self, name: str, **settings: Any) -> Sink:
        options = {"storage_options": self.options} if self.options else {}
        return make_sink(f"{self.root}/{name}", format=self.format, **options, **settings)

    def count(self, name: str) -> int:
        return int(rows_at(self.format, f"{self.root}/{name}", self.options).num_rows)

    def files(self, name: str) -> dict[str, int]:
        return files_at(self.format, f"{self.root}/{name}", self.options)


def names_of_all(place: Place, name: str) -> list[str]:
    """Return the names of all files of a table, as its log has them."""
    begin = f"{place.format}/{name}/"
    if place.store:
        names = [file.removeprefix(begin) for file in place.store.names(begin)]
    else:
        root = Path(place.root, name)
        names = [str(path.relative_to(root)) for path in root.rglob("*.parquet")]
    location = f"{place.root if place.store else 'file://' + place.root}/{name}/"
    return [location + file for file in names] if place.format == "iceberg" else names
