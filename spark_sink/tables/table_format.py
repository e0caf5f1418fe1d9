"""The base class of table formats, for changelogs and mirrors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.tables.table_store import TableStore

if TYPE_CHECKING:
    from slackwater.spark_sink.output.table_commits import TableCommits
    from slackwater.spark_sink.output.table_files import TableFiles


class TableFormat(TableStore):
    """Tables of one format, each named by its directory.

    A format is one module of this folder with one class, which registry.py lists.

    Args:
        catalog: a catalog of the session and a namespace, as in SQL; None if tables are
            directories.
        storage_options: of the object store with the tables; see open_object_store().

    Attributes:
        has_catalogs: its tables can be in a catalog, which the setting sink.catalog names.
        catalog, storage_options: as given.
    """

    has_catalogs: ClassVar[bool] = False

    def __init__(
        self,
        catalog: str | None = None,
        storage_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.catalog = catalog
        self.storage_options = storage_options

    @staticmethod
    @abstractmethod
    def spark_conf(spark_version: str) -> Mapping[str, str]:
        """Return the Spark settings that the format needs, among them its jars.

        Args:
            spark_version: such as 4.1.3.

        Raises:
            UnknownFormatError: the format does not work on this version of Spark.
        """

    @abstractmethod
    def log(
        self,
        path: str,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> tuple[TableCommits, TableFiles]:
        """Return a table's commits, and its files that no commit names yet.

        Args:
            path: the table's directory or URL.
            application: names the pipeline in commits.
            properties: of a table that is created.
            has_lines: its commits have the watermark log's lines.
        """
