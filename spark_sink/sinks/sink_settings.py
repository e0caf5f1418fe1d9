"""The settings that all kinds of sinks have, and those that several kinds share.

A kind of sink is one module of this folder: its settings, a concrete SinkSettings, and its Sink.
registry.py finds it by its name.
"""

import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from slackwater.setting_values import Section, TextMapping
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import DUCKLAKE
from slackwater.spark_sink.output.hadoop_connectors import connectors_for
from slackwater.spark_sink.output.hadoop_files import (
    require_catalog,
    require_file_system,
)
from slackwater.spark_sink.output.object_store import (
    SCHEMES,
    is_object_store,
    open_object_store,
    probe,
)
from slackwater.spark_sink.output.small_files import LOCAL_SCHEME, without_scheme
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.registry import TABLE_FORMATS

if TYPE_CHECKING:
    from slackwater.spark_sink.output.epoch_place import EpochPlace

# A name in Spark's settings and a namespace, or the URL of a database.
_CATALOG: Final = r"^([A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*|(sqlite:///|postgresql://).+)$"
_READ_DIFFERENTLY: Final = re.compile(r"%[0-9A-Fa-f]{2}|[#?]")


def one_of(value: object, names: Sequence[str]) -> object:
    """Return the value if it is one of the names.

    Raises:
        ValueError: it is not; the message lists the names.
    """
    if value not in names:
        *others, last = map(repr, names)
        raise ValueError(f"Input should be {', '.join(others)} or {last}")
    return value


def _absolute(place: str) -> str:
    """Return a path of this machine as an absolute one, which some writers require."""
    return place if urlsplit(place).scheme else os.path.abspath(place)


Place = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]


def _octal(value: object) -> object:
    """Return a mode as text: YAML reads 0640 as a number in base 8."""
    return f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else value


class SinkSettings(Section, ABC):
    """The settings that every sink has.

    Attributes:
        kind: the name of the kind of sink.
        format: the format that is written.
        path: where epochs appear, or wait for their audit; absolute, or a URL.
        checkpoint: the directory of Spark's checkpoint.
        catalog: of formats that have catalogs: in Spark's settings, or a database.
        storage_options: of the object store with the path; see open_object_store().
        file_mode: the mode of files that the pipeline's process writes to disks, as in chmod.
        formats: the formats of the kind; empty if only Spark has a list of them.
        refused_keys: keys that make no sense for the kind, each with the message that says so.
        has_initial_scan: an initial scan is made unless the settings say otherwise.
        has_rescans: its sink can be given a table's rows again while the changes go on.
        needs_all_changes: a change stream that leaves changes out is refused.
    """

    formats: ClassVar[Sequence[str]] = ()
    refused_keys: ClassVar[Mapping[str, str]] = {}
    has_initial_scan: ClassVar[bool] = False
    has_rescans: ClassVar[bool] = False
    needs_all_changes: ClassVar[bool] = False

    kind: str
    format: Annotated[str, Field(min_length=1)] = "parquet"
    path: Place
    checkpoint: Place
    catalog: Annotated[str, Field(pattern=_CATALOG)] | None = None
    storage_options: TextMapping = Field(default_factory=dict)
    file_mode: Annotated[
        Literal["0600", "0640", "0644", "0660", "0664"], BeforeValidator(_octal)
    ] = "0600"

    @property
    def takes_any_columns(self) -> bool:
        """Whether the rows may have other columns than Spanner's data change records."""
        return False

    @property
    def takes_parts_of_rows(self) -> bool:
        """Whether readers can tell the columns that no change has from those that are NULL."""
        return True

    @property
    def is_visible_in_parts(self) -> bool:
        """Whether a process that dies may leave a part of an epoch that is not sent again."""
        return False

    @classmethod
    def kind_name(cls) -> str:
        """Return the name of the kind: the default of the field kind."""
        return str(cls.model_fields["kind"].default)

    @staticmethod
    def spark_conf(spark_version: str) -> Mapping[str, str]:  # noqa: ARG004
        """Return the Spark settings that the kind needs, among them its jars.

        Args:
            spark_version: such as 4.1.3.
        """
        return {}

    @property
    def umask(self) -> int:
        """The umask that gives files their mode; those who may read them may list folders."""
        mode = int(self.file_mode, 8)
        return 0o777 & ~(mode | (mode & 0o444) >> 2)

    @property
    def spark_needs(self) -> frozenset[str]:
        """The names in registry.spark_confs() of the settings that this sink needs."""
        return frozenset({self.kind, self.format}) | connectors_for(self.hadoop_paths)

    @property
    def hadoop_paths(self) -> tuple[str, ...]:
        """The paths that Spark reaches through Hadoop's file systems."""
        return (self.checkpoint,)

    @property
    def place_path(self) -> str:
        """Where epochs are staged and committed."""
        return self.path

    @property
    def place_options(self) -> Mapping[str, str]:
        """The options of the object store with that place."""
        return self.storage_options

    @property
    def is_on_disk(self) -> bool:
        """Whether that place is on a disk of this machine."""
        return urlsplit(self.place_path).scheme in {"", LOCAL_SCHEME}

    @property
    def is_in_store(self) -> bool:
        """Whether that place is in an object store."""
        return is_object_store(self.place_path)

    def make_place(self) -> "EpochPlace":
        """Return that place; nothing is requested yet."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.bucket_place import Bucket
        from slackwater.spark_sink.output.disk_place import Disk

        if self.is_in_store:
            return Bucket(self.place_path, self.place_options)
        return Disk(Path(without_scheme(self.place_path)), self.place_path)

    @property
    def has_expendable_checkpoint(self) -> bool:
        """Whether the checkpoint may be lost, because the output holds its position."""
        return False

    @abstractmethod
    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Sink:
        """Return the sink; nothing is written yet.

        Args:
            origin: the pipeline and the source that messages name.
            record_filter: which records are written, and which of their columns.
        """

    def check_places(self, conf: Mapping[str, str], jars: Collection[str]) -> None:
        """Check that Spark can reach path and checkpoint, and is safe there, before it is started.

        Args:
            conf: Spark's settings.
            jars: the names of the jars and packages on its class path.

        Raises:
            FileSystemError: it can't, or is not.
        """
        if self.catalog is not None and self.format in TABLE_FORMATS:
            require_catalog(self.catalog, conf)
        for path in self.hadoop_paths:
            require_file_system(path, conf, jars)

    def claim_places(self) -> None:
        """Make folders that other users of this machine could make first.

        Raises:
            SinkError: one of them was made by another user.
        """

    def check(self) -> None:
        """Ask the services that the sink needs, for `slackwater check`.

        An object is written to an object store, read and removed.

        Raises:
            SinkError: one of them does not answer, or refuses.
        """
        if self.is_in_store:
            probe(self.place_path, self.place_options)

    def check_capture_type(self, capture_type: str) -> None:
        """Check that the change stream captures what the sink needs, before a pipeline starts.

        Args:
            capture_type: the change stream's value capture type.

        Raises:
            PartialRowError: it does not.
        """

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse tables and columns whose names the output can't have, before a pipeline starts.

        Args:
            tables: the columns of each table, by its full name.

        Raises:
            TableNameError, ColumnNameError: there is one.
        """

    @field_validator("format")
    @classmethod
    def _format_of_kind(cls, name: str) -> str:
        if cls.formats and name not in cls.formats:
            formats = ", ".join(cls.formats)
            raise ValueError(
                f"{name!r} is not a format of kind {cls.kind_name()}; known: {formats}."
                " Kind spark has any that Spark can write"
            )
        return name

    @model_validator(mode="after")
    def _catalog_of_format(self) -> Self:
        having = [name for name, made in TABLE_FORMATS.items() if made.has_catalogs]
        if self.catalog is None:
            return self
        if self.format not in (*having, DUCKLAKE):
            raise ValueError(f"catalog goes with format {', '.join(having)} or {DUCKLAKE} only")
        if ("://" in self.catalog) != (self.format == DUCKLAKE):
            raise ValueError(
                "catalog is the URL of a database, such as sqlite:///lake.sqlite, with format"
                f" {DUCKLAKE}, and otherwise the name of a catalog in spark.conf"
            )
        return self

    @model_validator(mode="after")
    def _place_of_path(self) -> Self:
        if self.is_in_store:
            if marks := _READ_DIFFERENTLY.search(self.place_path):
                raise ValueError(
                    f"path has {marks[0]!r}, which Spark and the object store's client take for"
                    " different names; choose another name"
                )
            try:
                open_object_store(self.place_path, self.place_options)
            except ObjectStoreError as error:
                raise ValueError(error.message) from error
            return self
        if not self.is_on_disk:
            raise ValueError(
                f"path is {self.path}, which is neither on a local disk nor in an object store"
                f" ({', '.join(f'{scheme}://' for scheme in sorted(SCHEMES))}). Set path to one"
                " that is. Kind spark writes, at least once, to any place that its format reaches"
            )
        if self.place_options:
            raise ValueError(
                "storage_options goes with a path in an object store. What Spark needs to reach one"
                " goes into spark.conf"
            )
        return self

    @model_validator(mode="after")
    def _separate_directories(self) -> Self:
        if _one_spelling(self.path) == _one_spelling(self.checkpoint):
            raise ValueError(f"path and checkpoint are both {self.path}; they must differ")
        return self


def _one_spelling(path: str) -> str:
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{posixpath.normpath(rest)}"
