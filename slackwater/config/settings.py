"""The settings: one YAML file, each key also as an environment variable, checked as a whole.

The settings that the Spark source has, too, are defined in scheduler.source_settings. config.load
reads the file and the environment.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator
from pydantic import model_validator as check_model

from slackwater.errors import SettingsError
from slackwater.scheduler.read_options import Reading
from slackwater.scheduler.source_settings import (
    KEEP_MS,
    BigtableSettings,
    BoundedSettings,
    Keep,
    PipelineName,
    ReadingSettings,
    StreamSettings,
)
from slackwater.setting_values import (
    Duration,
    KeysOfKinds,
    Names,
    Section,
    from_json,
    listed,
)
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.record_filter import ModType
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.session_rules import wrong_settings
from slackwater.spark_sink.sinks.registry import AnySinkSettings
from slackwater.spark_sink.sinks.sink_settings import one_of

_ADDRESS: Final = r"^([^:/\s]+|\[[0-9a-f:]+\]):\d{1,5}$"
_HOST: Final = r"^(\*\.)?[^:/*\s]+$"


def _yes_no(value: object) -> object:
    """Return yes or no as text: YAML reads a plain yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


class SourceSettings(BoundedSettings, ABC):
    """The settings that every source has.

    Attributes:
        kind: the service that is read.
        finds_partitions: it tells the partitions of a time that has passed.
    """

    finds_partitions: ClassVar[bool] = True

    kind: str

    @property
    def service(self) -> str:
        """The service's name, for people."""
        return self.kind.capitalize()

    @abstractmethod
    def initial_scan_or(self, default: str) -> str:
        """Return whether rows are read before their changes; a default if nothing is set."""

    @abstractmethod
    def new_tables_or(self, default: str) -> str:
        """Return what becomes of new tables; a default if nothing is set."""


class Source(SourceSettings, StreamSettings):
    """The change stream to read, and the rows from before its changes."""

    kind: Literal["spanner"] = "spanner"
    initial_scan: Annotated[
        Literal["yes", "no", "only"] | None,
        BeforeValidator(_yes_no, json_schema_input_type=Literal["yes", "no", "only"] | bool | None),
    ] = None
    new_tables: Literal["scan", "changes_only"] | None = None
    data_boost: bool = False

    def initial_scan_or(self, default: str) -> str:
        """Return the setting, or the default."""
        return self.initial_scan or default

    def new_tables_or(self, default: str) -> str:
        """Return the setting, or the default."""
        return self.new_tables or default


class BigtableSource(SourceSettings, BigtableSettings):
    """The table of Bigtable's whose changes are read."""

    finds_partitions: ClassVar[bool] = False

    kind: Literal["bigtable"]

    def initial_scan_or(self, default: str) -> str:  # noqa: ARG002
        """Return no: rows are not read, only their changes."""
        return "no"

    def new_tables_or(self, default: str) -> str:  # noqa: ARG002
        """Return changes_only: there is one table."""
        return "changes_only"


SOURCE_KINDS: Final[Mapping[str, type[SourceSettings]]] = {
    "spanner": Source,
    "bigtable": BigtableSource,
}


def _known_kind(kind: object) -> object:
    return one_of(kind, list(SOURCE_KINDS))


class _KindOfSource(BaseModel):
    """The kind alone, which decides what the other keys may be."""

    kind: Annotated[str, BeforeValidator(_known_kind)] = "spanner"


def _parse_source(values: Any) -> Any:
    """Return the settings of the kind that the values name, or of Spanner."""
    if not isinstance(values, dict):
        return values
    return SOURCE_KINDS[_KindOfSource.model_validate(values).kind].model_validate(values)


def _keys_of_sources() -> list[str]:
    return list(dict.fromkeys(key for kind in SOURCE_KINDS.values() for key in kind.model_fields))


AnySource = Annotated[SourceSettings, BeforeValidator(_parse_source), KeysOfKinds(_keys_of_sources)]


class EpochSettings(ReadingSettings):
    """The length of an epoch, the way in which it is read, and the start of the next one."""

    trigger: Annotated[int, Duration()] = 1_000
    progress_deadline: Annotated[int, Duration(10_000)] = 600_000


class FilterSettings(Section):
    """The records and columns that are kept; see spark_sink.filters."""

    tables: Names = ()
    exclude_tables: Names = ()
    mod_types: Annotated[tuple[ModType, ...], BeforeValidator(listed)] = ()
    transaction_tags: Names = ()
    exclude_transaction_tags: Names = ()
    system_transactions: bool = True
    when_changed: Names = ()
    columns: Names = ()
    exclude_columns: Names = ()

    @field_validator("when_changed", "columns", "exclude_columns")
    @classmethod
    def _of_tables(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        return ColumnFilter(globs).columns


class State(Section):
    """The metadata store."""

    url: Annotated[str, Field(min_length=1)] = "sqlite:///out/state.db"
    keep: Keep = KEEP_MS


class Lease(Section):
    """The lease, which decides between two processes that could run the pipeline."""

    duration: Annotated[int, Duration(2_000, 600_000)] = 6_000
    when_taken: Literal["wait", "exit"] = "wait"


class Spark(Section):
    """The Spark that runs it."""

    # Without the second number Spark does not try a failed task again on one machine.
    master: str = "local[*,4]"
    conf: dict[str, str] = Field(default_factory=dict)
    jars: str | None = None
    class_archive: str | None = None

    @field_validator("conf")
    @classmethod
    def _keeps_promises(cls, conf: dict[str, str]) -> dict[str, str]:
        if problems := "; ".join(wrong_settings(conf)):
            raise ValueError(f"{problems}. Leave it out")
        return conf


class Tls(Section):
    """The files of a certificate and its key, in PEM."""

    certificate: str
    key: str


class Http(Section):
    """The address of the page, its API, the metrics and the probes; off unless listen is set."""

    listen: Annotated[str, Field(pattern=_ADDRESS)] | None = None
    hosts: Annotated[tuple[Annotated[str, Field(pattern=_HOST)], ...], BeforeValidator(listed)] = ()
    token_file: str | None = None
    tls: Annotated[Tls | None, BeforeValidator(from_json)] = None

    @property
    def host(self) -> str:
        """The address to listen on."""
        assert self.listen is not None  # noqa: S101 - only read if it is on
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to listen on; 0 for any that is free."""
        assert self.listen is not None  # noqa: S101 - only read if it is on
        return int(self.listen.rpartition(":")[2])


class Log(Section):
    """The log of the process."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Trace(Section):
    """The export of spans; off unless endpoint is set."""

    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None


class Settings(Section):
    """A pipeline's settings."""

    pipeline: PipelineName
    source: AnySource
    epoch: EpochSettings = EpochSettings()
    filter: FilterSettings = FilterSettings()
    sink: AnySinkSettings
    state: State = State()
    lease: Lease = Lease()
    spark: Spark = Spark()
    http: Http = Http()
    log: Log = Log()
    trace: Trace = Trace()
    # A settings file that holds a secret may be one that every user can read.
    allow_readable_secrets: bool = False

    @property
    def initial_scan(self) -> str:
        """The setting, or its default: a mirror needs the rows that were there before, too."""
        return self.source.initial_scan_or("yes" if self.sink.has_initial_scan else "no")

    @property
    def new_tables(self) -> str:
        """The setting, or its default: tables are read if those of the beginning are."""
        is_scanned = self.sink.has_rescans and self.initial_scan != "no"
        return self.source.new_tables_or("scan" if is_scanned else "changes_only")

    def spanner(self) -> Source:
        """Return the section source of a pipeline that reads Spanner.

        Raises:
            SettingsError: it reads Bigtable.
        """
        if not isinstance(self.source, Source):
            raise SettingsError(
                f"pipeline {self.pipeline} reads a table of Bigtable's.",
                "This is for pipelines that read Spanner",
            )
        return self.source

    @check_model(mode="after")
    def _bigtable_has_its_sinks(self) -> Self:
        if not isinstance(self.source, BigtableSource):
            return self
        if not (self.source.columns or self.sink.takes_any_columns):
            raise ValueError(
                "source.kind bigtable without source.columns goes with sink.kind changelog, in"
                " format parquet, json, orc, delta or iceberg, and with the envelope record"
            )
        if self.sink.has_initial_scan:
            raise ValueError(
                "source.kind bigtable does not go with sink.kind mirror: rows from before their"
                " changes are not read, and a change does not tell all cells of its row"
            )
        if not self.sink.takes_parts_of_rows:
            raise ValueError(
                "source.kind bigtable goes with the envelopes record, key_only and (not in Avro)"
                " flat: a change does not tell all cells of its row"
            )
        if self.sink.kind == "changelogs" and self.sink.format == BIGQUERY:
            raise ValueError(
                "source.kind bigtable with sink.format bigquery goes with sink.kind changelog: no"
                " columns of typed changelogs there have names such as family:qualifier"
            )
        if self.sink.is_visible_in_parts:
            raise ValueError(
                "source.kind bigtable needs a sink where an epoch becomes visible at one moment:"
                " read again, it may have other changes. Kafka is one with sink.shards 1"
            )
        if self.filter != FilterSettings():
            raise ValueError("filter is for Spanner's changes, and source.kind is bigtable")
        if self.epoch.reading is not Reading.BOUNDED:
            raise ValueError("epoch.reading continuous does not go with source.kind bigtable")
        return self

    @check_model(mode="after")
    def _sink_takes_rows_again(self) -> Self:
        if self.new_tables == "scan" and not self.sink.has_rescans:
            raise ValueError(
                f"source.new_tables scan does not go with sink.kind {self.sink.kind}: only mirrors"
                " and changelogs can be given rows again. Set it to changes_only, or leave it out"
            )
        return self

    @check_model(mode="after")
    def _scan_is_recent(self) -> Self:
        if self.initial_scan != "no" and self.source.start == "earliest":
            raise ValueError(
                "source.start earliest does not go with an initial scan: Spanner keeps old rows for"
                " its version retention period only. Leave source.start out, or set"
                " source.initial_scan to no"
            )
        return self

    @check_model(mode="after")
    def _mirror_has_all_changes(self) -> Self:
        if self.filter.when_changed and self.sink.needs_all_changes:
            raise ValueError(
                "filter.when_changed leaves changes out, and a mirror without them would not be its"
                " table. Leave it out, or choose another sink.kind"
            )
        return self
