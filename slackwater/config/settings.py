"""The settings: one YAML file, each key also as an environment variable, checked as a whole.

What a file or the environment holds is read by slackwater.pipelines.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic import model_validator as check_model

from slackwater.config.setting_types import (
    DurationMs,
    Names,
    Section,
    as_text,
    from_json,
    listed,
    yes_no,
)
from slackwater.config.sink_settings import Sink
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import ChangeStreamNameError
from slackwater.reader.transport.statement import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.record_filter import ModType
from slackwater.timestamp import parse_rfc3339

_ADDRESS: Final = r"^([^:/\s]+|\[[0-9a-f:]+\]):\d{1,5}$"
# Stand in for the names not being checked, so that each wrong name is told beside the others.
_ANY_NAMES: Final[dict[str, Any]] = {
    "project": "some-project",
    "instance": "some-instance",
    "database": "some-database",
    "change_stream": "some_stream",
}


def _rfc3339(text: str) -> str:
    parse_rfc3339(text)
    return text


def _start(text: str) -> str:
    return text if text in ("now", "earliest") else _rfc3339(text)


class Replica(Section):
    """A replica that directed reads choose or avoid."""

    location: str | None = None
    type: Literal["READ_WRITE", "READ_ONLY"] | None = None


class DirectedRead(Section):
    """Which replicas serve the queries; one of the two lists."""

    include: tuple[Replica, ...] = ()
    exclude: tuple[Replica, ...] = ()

    @check_model(mode="after")
    def _one_list(self) -> Self:
        if bool(self.include) == bool(self.exclude):
            raise ValueError("needs one list of replicas, include or exclude, and not both")
        return self

    def options(self) -> dict[str, Any]:
        """Spanner's DirectedReadOptions in protobuf's JSON form."""
        kind, replicas = (
            ("includeReplicas", self.include) if self.include else ("excludeReplicas", self.exclude)
        )
        listed = [replica.model_dump(exclude_none=True) for replica in replicas]
        return {kind: {"replicaSelections": listed}}


class Source(Section):
    """Which change stream to read, from when to when."""

    project: str
    instance: str
    database: str
    change_stream: str
    start: Annotated[str, BeforeValidator(as_text), AfterValidator(_start)] = "now"
    end: Annotated[str, BeforeValidator(as_text), AfterValidator(_rfc3339)] | None = None
    initial_scan: Annotated[Literal["yes", "no", "only"] | None, BeforeValidator(yes_no)] = None
    data_boost: bool = False
    database_role: str | None = None
    priority: Literal["low", "medium", "high"] | None = None
    request_tag: str | None = None
    directed_read: Annotated[DirectedRead | None, BeforeValidator(from_json)] = None

    @field_validator(*_ANY_NAMES)
    @classmethod
    def _spanners_name(cls, name: str, info: ValidationInfo) -> str:
        try:
            ChangeStream(**(_ANY_NAMES | {str(info.field_name): name}))
        except ChangeStreamNameError as error:
            raise ValueError(str(error)) from error
        return name

    @check_model(mode="after")
    def _end_after_start(self) -> Self:
        if (
            self.end is not None
            and self.start not in ("now", "earliest")
            and parse_rfc3339(self.end) < parse_rfc3339(self.start)
        ):
            raise ValueError(f"end {self.end} lies before start {self.start}")
        return self


class EpochSettings(Section):
    """How long an epoch is."""

    trigger: DurationMs = 1_000
    max_span: Annotated[DurationMs, Field(ge=1_000, le=7 * 86_400_000)] = 86_400_000
    target_records: Annotated[int, Field(ge=1)] = 1_000_000
    target_time: Annotated[DurationMs, Field(ge=1_000, le=86_400_000)] = 30_000
    heartbeat: Annotated[DurationMs, Field(ge=HEARTBEAT_MS_MIN, le=HEARTBEAT_MS_MAX)] = 10_000
    concurrent_queries: Annotated[int, Field(ge=1, le=1_000)] = 16
    proof: Literal["ok", "record"] = "ok"
    audit: Literal["stop", "log"] = "stop"


class FilterSettings(Section):
    """Which records are kept, and which columns; see spark_sink.filters."""

    tables: Names = ()
    exclude_tables: Names = ()
    mod_types: Annotated[tuple[ModType, ...], BeforeValidator(listed)] = ()
    transaction_tags: Names = ()
    exclude_transaction_tags: Names = ()
    system_transactions: bool = True
    columns: Names = ()
    exclude_columns: Names = ()

    @field_validator("columns", "exclude_columns")
    @classmethod
    def _of_tables(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        return ColumnFilter(globs).columns


class State(Section):
    """The metadata store."""

    url: Annotated[str, Field(min_length=1)] = "sqlite:///out/state.db"
    keep: Annotated[DurationMs, Field(ge=60_000)] = 3_600_000


class Lease(Section):
    """Who runs the pipeline when two processes could."""

    duration: Annotated[DurationMs, Field(ge=2_000, le=600_000)] = 6_000
    when_taken: Literal["wait", "exit"] = "wait"


class Spark(Section):
    """The Spark that runs it."""

    # Without the second number Spark does not try a failed task again on one machine.
    master: str = "local[*,4]"
    conf: dict[str, str] = Field(default_factory=dict)
    jars: str | None = None
    class_archive: str | None = None


class Http(Section):
    """Where the process shows what it does; off unless listen is set."""

    listen: Annotated[str, Field(pattern=_ADDRESS)] | None = None

    @property
    def host(self) -> str:
        """The address; anything but this machine's own has to be told."""
        assert self.listen is not None  # noqa: S101 - asked where it is on
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0 for any that is free."""
        assert self.listen is not None  # noqa: S101 - asked where it is on
        return int(self.listen.rpartition(":")[2])


class Log(Section):
    """How the process writes its log."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Trace(Section):
    """Where spans go; off unless endpoint is set."""

    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None


class Settings(Section):
    """A pipeline's settings."""

    pipeline: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
    source: Source
    epoch: EpochSettings = EpochSettings()
    filter: FilterSettings = FilterSettings()
    sink: Sink
    state: State = State()
    lease: Lease = Lease()
    spark: Spark = Spark()
    http: Http = Http()
    log: Log = Log()
    trace: Trace = Trace()

    @property
    def initial_scan(self) -> str:
        """yes, no or only: a mirror without what was there before would be none."""
        return self.source.initial_scan or ("yes" if self.sink.kind == "mirror" else "no")

    @check_model(mode="after")
    def _scan_is_recent(self) -> Self:
        if self.initial_scan != "no" and self.source.start == "earliest":
            raise ValueError(
                "source.start earliest does not go with an initial scan: Spanner keeps the rows of"
                " old for its version retention period only; leave start out, or set"
                " source.initial_scan no"
            )
        return self
