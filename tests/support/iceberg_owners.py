"""Processes that commit to an Iceberg table: in a folder, or in a catalog of spark.conf."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from slackwater.spark_sink.output.file_writer import written_files_of
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.output.iceberg.pending_commits import CommitsAtOnce
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from slackwater.spark_sink.output.table_files import data_files

APPLICATION = "slackwater orders"
SCHEMA = pa.schema({"number": pa.int64(), "kind": pa.string()})


@dataclass
class Owner:
    """A process that commits to a table."""

    commits: IcebergCommits
    files: IcebergFiles
    spark: Any

    def take_over(self) -> None:
        self.files.take_over(self.spark)
        self.commits.take_over()

    def append(self, rows: pa.Table, version: int, **more: Any) -> bool:
        self.commits.open(rows.schema, more.pop("partition_by", ()))
        written = written_files_of(self.files.writer(self.commits.partition_columns), rows)
        application = more.pop("application", APPLICATION)
        done = self.commits.append(data_files(self.files, written), application, version, **more)
        self.files.discard([])
        return done

    def add(self, number: int, **more: Any) -> bool:
        """Commit the epoch with a number, which is its only row."""
        return self.append(pa.table({"number": [number], "kind": ["a"]}, SCHEMA), number, **more)


@dataclass
class Where:
    """Where a table is, as settings have it."""

    place: TablePlace
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def spark(self) -> Any:
        return SimpleNamespace(conf=SimpleNamespace(getAll=dict(self.conf)))

    def unowned(self, at_once: CommitsAtOnce | None = None) -> Owner:
        commits = IcebergCommits(self.place, APPLICATION, at_once=at_once)
        return Owner(commits, IcebergFiles(commits), self.spark)

    def owner(self, at_once: CommitsAtOnce | None = None) -> Owner:
        owner = self.unowned(at_once)
        owner.take_over()
        return owner

    def owner_of_nothing(self) -> IcebergCommits:
        """Return what maintains the table, as a thread of its own does."""
        commits = IcebergCommits(self.place, APPLICATION)
        commits.connect(self.spark)
        return commits

    def catalog(self) -> Catalog:
        return self.place.open(self.spark)

    def table(self) -> Table:
        return self.catalog().load_table(self.place.identifier)

    def numbers(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["number"].to_pylist())


def in_folder(folder: Path) -> Where:
    return Where(TablePlace(str(folder / "a table 100%")))


def in_database(folder: Path) -> Where:
    """Return a new table's place in a catalog in SQLite."""
    key = "spark.sql.catalog.lake"
    conf = {
        key: "org.apache.iceberg.spark.SparkCatalog",
        f"{key}.type": "jdbc",
        f"{key}.uri": f"jdbc:sqlite:{folder}/catalog.db",
        f"{key}.warehouse": f"file://{folder}/warehouse",
    }
    where = Where(TablePlace("out/changes", "lake.tables"), conf)
    where.catalog().create_namespace("tables")
    return where


def on_the_test_s_disk(patch: pytest.MonkeyPatch) -> None:
    """Leave out to ask Spark whether it means the same disk: there is none."""
    patch.setattr("slackwater.spark_sink.output.disk_place.Disk.prepare", lambda *_: None)


def before(patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], object]) -> None:
    """Do something once, before a function is called."""
    function, is_done = getattr(owner, name), False

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            action()
        return function(*args, **kwargs)

    patch.setattr(owner, name, called)
