"""The settings of a source: type, bounds, default and meaning of each, in one place.

The settings file has them in the sections source, epoch and state; a notebook has them as options
of the Spark source, `slackwater tail` as options of its command. All of them are checked by these
models, once, where they come in. From there on SourceOptions has the values.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, model_validator

from slackwater.endpoint import Endpoint, or_emulator
from slackwater.reader.bigtable.table import (
    EMULATOR_VARIABLE,
    KEY_TYPES,
    ROW_KEY,
    TYPES,
    BigtableTable,
)
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import ChangeStreamNameError
from slackwater.reader.transport.statement import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from slackwater.scheduler.directed_read import parse_directed_read
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.options import BIGTABLE_FORMAT, SPANNER_FORMAT, SourceOptions
from slackwater.scheduler.read_options import (
    EARLIEST,
    NOW,
    AuditMode,
    Proof,
    Reading,
    ReadOptions,
)
from slackwater.setting_values import (
    AnyCase,
    Duration,
    EmptyIsNone,
    Section,
    TextMapping,
    WholeNumber,
)
from slackwater.timestamp import ms_to_ns, ms_to_seconds, parse_duration_ms, parse_rfc3339

_MIB: Final = 1 << 20
_SECOND_MS: Final = parse_duration_ms("1s")
_DAY_MS: Final = parse_duration_ms("1d")
# Stand in for the names that are not being checked, so that each name is checked by itself.
_VALID_NAMES: Final[Mapping[str, Any]] = {
    "project": "some-project",
    "instance": "some-instance",
    "database": "some-database",
    "change_stream": "some_stream",
}
_OF_BIGTABLE: Final[Mapping[str, Any]] = {
    "project": "some-project",
    "instance": "some-instance",
    "table": "some-table",
}


def _known_columns(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return columns of Bigtable's with types that are known.

    Tables have one column for names that differ in case only.
    """
    by_lower: dict[str, str] = {}
    for name, code in columns.items():
        if (other := by_lower.setdefault(name.lower(), name)) != name:
            raise ValueError(f"{other!r} and {name!r} differ in case only: leave one of them out")
        if name != ROW_KEY and not all(name.partition(":")[::2]):
            raise ValueError(f"{name!r} is neither family:qualifier nor {ROW_KEY}")
        types = KEY_TYPES if name == ROW_KEY else TYPES
        if code not in types:
            raise ValueError(f"{name} has the type {code!r}. Use one of {', '.join(types)}")
    return columns


def _name_of(
    part: str,
    make: Callable[..., object] = ChangeStream,
    valid_names: Mapping[str, Any] = _VALID_NAMES,
) -> AfterValidator:
    """Return the check of a part of an address."""

    def check(name: str) -> str:
        try:
            make(**{**valid_names, part: name})
        except ChangeStreamNameError as error:
            raise ValueError(str(error)) from error
        return name

    return AfterValidator(check)


def _endpoint(host: str) -> str:
    Endpoint(host)
    return host


def _time(text: str) -> str:
    parse_rfc3339(text)
    return text


def _start(text: str) -> str:
    if text not in (NOW, EARLIEST):
        try:
            parse_rfc3339(text)
        except ValueError as error:
            raise ValueError(f"{error}; or write {NOW} or {EARLIEST}") from error
    return text


def _directed_read(value: object) -> object:
    return None if value is None else parse_directed_read(value)


PIPELINE_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
PipelineName = Annotated[str, Field(pattern=PIPELINE_NAME)]
Keep = Annotated[int, Duration(parse_duration_ms("1m"), parse_duration_ms("36500d"))]
KEEP_MS: Final = parse_duration_ms("1h")
_MaybeText = Annotated[str | None, EmptyIsNone]
_Priority = Annotated[Literal["low", "medium", "high"], AnyCase]


class EndpointSettings(Section):
    """The server that answers as the source: the fields of slackwater.endpoint.Endpoint."""

    endpoint: Annotated[Annotated[str, AfterValidator(_endpoint)] | None, EmptyIsNone] = Field(
        default=None, description="HOST or HOST:PORT, if it is not the public service's"
    )
    plaintext: bool = Field(default=False, description="the endpoint has no TLS")
    anonymous: bool = Field(
        default=False, description="the endpoint takes no credentials of Google's"
    )
    ca_certificate: _MaybeText = Field(
        default=None, description="a PEM file with the authorities to trust"
    )
    client_certificate: _MaybeText = Field(
        default=None, description="a PEM file with the client's certificate, for mutual TLS"
    )
    client_key: _MaybeText = Field(default=None, description="a PEM file with the client's key")
    credentials_file: _MaybeText = Field(
        default=None, description="a file with credentials, in place of the default ones"
    )
    impersonate_service_account: _MaybeText = Field(
        default=None, description="the e-mail address of the service account to act as"
    )
    quota_project: _MaybeText = Field(
        default=None, description="the project whose quota the requests use"
    )
    universe_domain: _MaybeText = Field(
        default=None, description="the universe domain, if it is not googleapis.com"
    )

    @model_validator(mode="after")
    def _endpoint_is_whole(self) -> Self:
        self.endpoint_named()
        return self

    def endpoint_named(self) -> Endpoint:
        """Return the endpoint that the settings name.

        Raises:
            ValueError: they do not go together.
        """
        values = {name: getattr(self, name) for name in EndpointSettings.model_fields}
        return Endpoint(values.pop("endpoint"), **values)


class BoundedSettings(EndpointSettings, ABC):
    """The bounds of a read of changes, whatever the source.

    Attributes:
        source_format: the name of the Spark source.
        heartbeats_ms: the heartbeat interval that is asked for if none is set.
    """

    source_format: ClassVar[str]
    heartbeats_ms: ClassVar[Mapping[Reading, int]]

    project: Annotated[str, _name_of("project"), Field(description="the project")]
    instance: Annotated[str, _name_of("instance"), Field(description="the instance")]
    start: Annotated[str, AfterValidator(_start)] = Field(
        default=NOW,
        description="now, earliest or an RFC 3339 time; counts when the pipeline is new",
    )
    end: Annotated[Annotated[str, AfterValidator(_time)] | None, EmptyIsNone] = Field(
        default=None, description="no epoch is offered after this RFC 3339 time"
    )

    @model_validator(mode="after")
    def _end_after_start(self) -> Self:
        has_times = self.end is not None and self.start not in (NOW, EARLIEST)
        if has_times and parse_rfc3339(str(self.end)) < parse_rfc3339(self.start):
            raise ValueError(f"end {self.end} lies before start {self.start}; write a later end")
        return self

    @abstractmethod
    def address(self, environ: Mapping[str, str]) -> Any:
        """Return what is read.

        Args:
            environ: may name an emulator. Spark's executors may not have this process's.

        Raises:
            EndpointError: the environment names another server than the settings.
        """


class BigtableSettings(BoundedSettings):
    """The table of Bigtable's whose change stream is read, and the bounds of the read."""

    source_format: ClassVar = BIGTABLE_FORMAT
    heartbeats_ms: ClassVar = dict.fromkeys(Reading, _SECOND_MS)

    instance: Annotated[
        str, _name_of("instance", BigtableTable, _OF_BIGTABLE), Field(description="the instance")
    ]
    table: Annotated[
        str, _name_of("table", BigtableTable, _OF_BIGTABLE), Field(description="the table")
    ]
    app_profile: Annotated[
        str,
        _name_of("app_profile", BigtableTable, _OF_BIGTABLE),
        Field(description="the application profile, with single-cluster routing"),
    ] = "default"
    columns: Annotated[TextMapping, AfterValidator(_known_columns)] = Field(
        default_factory=dict,
        description="types of cells by family:qualifier, and of row_key; see docs/bigtable.md",
    )

    def address(self, environ: Mapping[str, str]) -> BigtableTable:
        """Return the table; see BoundedSettings."""
        return BigtableTable(
            self.project,
            self.instance,
            self.table,
            self.app_profile,
            or_emulator(self.endpoint_named(), environ, EMULATOR_VARIABLE),
            tuple(self.columns.items()),
        )


class StreamSettings(BoundedSettings):
    """The change stream to read, the bounds of the read, and the options of its queries."""

    source_format: ClassVar = SPANNER_FORMAT
    heartbeats_ms: ClassVar = {
        Reading.BOUNDED: parse_duration_ms("10s"),
        Reading.CONTINUOUS: _SECOND_MS,
    }

    database: Annotated[str, _name_of("database"), Field(description="the database")]
    change_stream: Annotated[str, _name_of("change_stream"), Field(description="the change stream")]
    database_role: _MaybeText = Field(
        default=None, description="the role for fine-grained access control"
    )
    priority: Annotated[_Priority | None, EmptyIsNone] = Field(
        default=None, description="low, medium or high"
    )
    request_tag: _MaybeText = Field(default=None, description="shown in Spanner's query statistics")
    # In protobuf's JSON form.
    directed_read: Annotated[
        Mapping[str, Any] | None, BeforeValidator(_directed_read), EmptyIsNone
    ] = Field(default=None, description="the replicas that serve the queries")

    def address(self, environ: Mapping[str, str]) -> ChangeStream:
        """Return the change stream; see BoundedSettings."""
        return ChangeStream(
            project=self.project,
            instance=self.instance,
            database=self.database,
            change_stream=self.change_stream,
            database_role=self.database_role,
            priority=self.priority,
            request_tag=self.request_tag,
            directed_read=self.directed_read,
            endpoint=or_emulator(self.endpoint_named(), environ),
        )


class ReadingSettings(Section):
    """The length of an epoch, and the way in which it is read."""

    max_span: Annotated[int, Duration(_SECOND_MS, parse_duration_ms("7d"))] = Field(
        default=_DAY_MS, description="the longest time that one epoch covers"
    )
    target_records: Annotated[int, WholeNumber(1, 10**18)] = Field(
        default=1_000_000,
        description="about how many records an epoch holds at most when the pipeline catches up",
    )
    target_time: Annotated[int, Duration(_SECOND_MS, _DAY_MS)] = Field(
        default=parse_duration_ms("30s"),
        description="about how long an epoch takes at most when the pipeline catches up",
    )
    reading: Annotated[Reading, AnyCase] = Field(
        default=Reading.BOUNDED,
        description=("bounded: a query a partition and epoch; continuous: queries that stay open"),
    )
    reader_memory: Annotated[int, WholeNumber(16, 1_000_000)] = Field(
        default=256,
        description="with continuous reading, the MiB of records that may wait in a reader process",
    )
    heartbeat: Annotated[
        Annotated[int, Duration(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)] | None, EmptyIsNone
    ] = Field(
        default=None,
        description=(
            "the heartbeat interval asked for; if left out 10s, or 1s with continuous reading and"
            " from Bigtable"
        ),
    )
    concurrent_queries: Annotated[int, WholeNumber(1, 1_000)] = Field(
        default=16, description="partition queries at once in a Spark task"
    )
    proof: Annotated[Proof, AnyCase] = Field(
        default=Proof.OK, description="what shows that a partition was read through an epoch's end"
    )
    audit: Annotated[AuditMode, AnyCase] = Field(
        default=AuditMode.STOP,
        description="what becomes of an epoch that breaks what the source promises",
    )


class _QueryOptions(ReadingSettings):
    """The options that a query in a notebook has beside its source's."""

    pipeline: PipelineName = Field(
        default="notebook", description="the name in the metadata store and in the checkpoint"
    )
    state_url: str | None = Field(default=None, description="the metadata store")
    keep: Keep = Field(default=KEEP_MS, description="how long finished partitions are remembered")
    tasks: Annotated[int, WholeNumber(1, 100_000)] = Field(
        default=os.cpu_count() or 1, description="Spark tasks an epoch, at most"
    )
    traces: bool = Field(
        default=False,
        description="keep in the metadata store when the longest queries of an epoch ran",
    )
    checkpoint_is_empty: bool | None = Field(default=None, description="the query is new")


class NotebookOptions(StreamSettings, _QueryOptions):
    """The options of the Spark source in a notebook: those of the file, and its own."""

    table: str | None = Field(
        default=None, description="read the changes of one table, in typed columns"
    )


class BigtableNotebookOptions(BigtableSettings, _QueryOptions):
    """The same of a table of Bigtable's, which has no queries that stay open."""

    reading: Annotated[Literal[Reading.BOUNDED], AnyCase] = Reading.BOUNDED


def require_pipeline_name(name: str) -> None:
    """Refuse a pipeline's name that would need quotes somewhere.

    Raises:
        ValidationError: it would.
    """
    TypeAdapter(PipelineName).validate_python(name)


def heartbeat_ms(stream: BoundedSettings, reading: ReadingSettings) -> int:
    """Return the heartbeat interval to ask for, milliseconds.

    With continuous reading it decides how fresh the output can be.
    """
    if reading.heartbeat is not None:
        return reading.heartbeat
    return stream.heartbeats_ms[reading.reading]


def options_of(
    stream: BoundedSettings,
    reading: ReadingSettings,
    environ: Mapping[str, str],
    *,
    pipeline: str,
    state_url: str,
    keep_ms: int,
    traces: bool,
    records_epochs: bool,
) -> SourceOptions[Any]:
    """Return the options of the Spark source's readers.

    Args:
        stream, reading: the settings.
        environ: may name an emulator.
        pipeline, state_url: see SourceOptions.
        keep_ms: how long finished partitions are kept in the store.
        traces: see ReadOptions.
        records_epochs: the caller records epochs, which then bound the next ones.

    Raises:
        EndpointError: as BoundedSettings.address().
    """
    target = SpanTarget(reading.target_records, ms_to_seconds(reading.target_time))
    start, end = stream.start, stream.end
    return SourceOptions(
        change_stream=stream.address(environ),
        pipeline=pipeline,
        state_url=state_url,
        keep_ns=ms_to_ns(keep_ms),
        start=start if start in (NOW, EARLIEST) else watermark_for_start(parse_rfc3339(start)),
        end_ns=None if end is None else watermark_for_end(parse_rfc3339(end)),
        span_max_ns=ms_to_ns(reading.max_span),
        reading=reading.reading,
        reader_memory_bytes=reading.reader_memory * _MIB,
        heartbeat_ms=heartbeat_ms(stream, reading),
        read=ReadOptions(
            concurrent_queries=reading.concurrent_queries,
            proof=reading.proof,
            audit=reading.audit,
            traces=traces,
        ),
        span_target=target if records_epochs else None,
    )
