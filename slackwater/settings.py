"""The settings: one YAML file, each key also as an environment variable, checked as a whole.

What a file or the environment holds is read by slackwater.pipelines.
"""

from __future__ import annotations

import json
import posixpath
import re
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic import model_validator as check_model

from reader.change_stream import ChangeStream
from reader.errors import ChangeStreamNameError
from reader.statement import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from reader.timestamp import format_rfc3339, parse_rfc3339
from spark_sink.column_filter import ColumnFilter
from spark_sink.envelopes.envelope import STAMPED, Envelope
from spark_sink.filters import ModType
from spark_sink.formats import DELTA, FORMATS, ICEBERG, KAFKA, TABLE_FORMATS

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ADDRESS: Final = r"^([^:/\s]+|\[[0-9a-f:]+\]):\d{1,5}$"
# Stand in for the names not being checked, so that each wrong name is told beside the others.
_ANY_NAMES: Final[dict[str, Any]] = {
    "project": "some-project",
    "instance": "some-instance",
    "database": "some-database",
    "change_stream": "some_stream",
}


def parse_duration_ms(value: object) -> int:
    """Milliseconds of a text such as 500ms, 1s, 10m, 2h; a bare 0 is no time at all."""
    if value == 0 and not isinstance(value, bool):  # YAML reads no and off as False
        return 0
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is no duration such as 500ms, 1s or 10m")
    return round(float(match.group(1)) * _UNIT_MS[match.group(2)])


def _rfc3339(text: str) -> str:
    parse_rfc3339(text)
    return text


def _start(text: str) -> str:
    return text if text in ("now", "earliest") else _rfc3339(text)


def _as_text(value: object) -> object:
    """YAML reads an unquoted time as a datetime, and an unquoted day as a date."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return format_rfc3339(round(value.timestamp() * 1_000_000) * 1_000)
    if isinstance(value, date):
        # Without a zone it would mean another moment on each machine.
        raise ValueError(  # noqa: TRY004 - pydantic collects ValueErrors
            f"{value} has no time and zone, as in 2026-01-31T09:00:00Z"
        )
    return value


def _from_json(value: object) -> object:
    """A variable of the environment holds a mapping as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no JSON: {error}") from error


def _one_spelling(path: str) -> str:
    scheme, separator, rest = path.rpartition("://")
    if not separator:
        return str(Path.cwd() / posixpath.normpath(path))
    return f"{scheme}{separator}{posixpath.normpath(rest)}"


def _listed(value: object) -> object:
    """A variable of the environment holds a list with commas."""
    return value.split(",") if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
PartitionColumn = Literal["table_name", "date"]
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]


def _yes_no(value: object) -> object:
    """YAML reads a plain yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Replica(_Section):
    """A replica that directed reads choose or avoid."""

    location: str | None = None
    type: Literal["READ_WRITE", "READ_ONLY"] | None = None


class DirectedRead(_Section):
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


class Source(_Section):
    """Which change stream to read, from when to when."""

    project: str
    instance: str
    database: str
    change_stream: str
    start: Annotated[str, BeforeValidator(_as_text), AfterValidator(_start)] = "now"
    end: Annotated[str, BeforeValidator(_as_text), AfterValidator(_rfc3339)] | None = None
    initial_scan: Annotated[Literal["yes", "no", "only"] | None, BeforeValidator(_yes_no)] = None
    data_boost: bool = False
    database_role: str | None = None
    priority: Literal["low", "medium", "high"] | None = None
    request_tag: str | None = None
    directed_read: Annotated[DirectedRead | None, BeforeValidator(_from_json)] = None

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


class EpochSettings(_Section):
    """How long an epoch is."""

    trigger: DurationMs = 1_000
    max_span: Annotated[DurationMs, Field(ge=1_000, le=7 * 86_400_000)] = 86_400_000
    target_records: Annotated[int, Field(ge=1)] = 1_000_000
    target_time: Annotated[DurationMs, Field(ge=1_000, le=86_400_000)] = 30_000
    heartbeat: Annotated[DurationMs, Field(ge=HEARTBEAT_MS_MIN, le=HEARTBEAT_MS_MAX)] = 10_000
    concurrent_queries: Annotated[int, Field(ge=1, le=1_000)] = 16
    proof: Literal["ok", "record"] = "ok"
    audit: Literal["stop", "log"] = "stop"


class FilterSettings(_Section):
    """Which records are kept, and which columns; see spark_sink.filters."""

    tables: Names = ()
    exclude_tables: Names = ()
    mod_types: Annotated[tuple[ModType, ...], BeforeValidator(_listed)] = ()
    transaction_tags: Names = ()
    exclude_transaction_tags: Names = ()
    system_transactions: bool = True
    columns: Names = ()
    exclude_columns: Names = ()

    @field_validator("columns", "exclude_columns")
    @classmethod
    def _of_tables(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        return ColumnFilter(globs).columns


class Sink(_Section):
    """What becomes of the records."""

    kind: Literal["changelog", "changelogs", "mirror", "kafka", "spark"] = "changelog"
    format: Annotated[str, Field(min_length=1)] = "parquet"
    path: Annotated[str, Field(min_length=1)]
    checkpoint: Annotated[str, Field(min_length=1)]
    partition_by: Annotated[tuple[PartitionColumn, ...], BeforeValidator(_listed)] = ()
    # Of table formats.
    compact_every: Annotated[DurationMs, Field(ge=60_000)] | None = None
    # Of format iceberg.
    catalog: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")] | None = None
    envelope: Envelope = Envelope.RECORD
    updated: bool = False
    mvcc_timestamp: bool = False
    # Of kind mirror.
    deletes: Literal["apply", "mark"] = "apply"
    # Of kinds mirror and changelogs.
    table_properties: Annotated[dict[str, str], BeforeValidator(_from_json)] = {}
    bad_records: Literal["stop", "dead_letter"] = "stop"
    # Of kinds kafka and spark.
    options: Annotated[dict[str, str], BeforeValidator(_from_json)] = {}
    # Of kind kafka.
    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]|\{table\})+$")] = "{table}"
    watermarks_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    resolved: DurationMs | None = None

    @field_validator("format")
    @classmethod
    def _known_format(cls, name: str, info: ValidationInfo) -> str:
        kind = str(info.data.get("kind"))
        formats = _FORMATS_OF_KIND.get(kind)
        if formats is not None and name not in formats:
            raise ValueError(
                f"{name!r} is no format of kind {kind}; known: {', '.join(formats)}. Kind spark"
                " has any that Spark can write"
            )
        return name

    @check_model(mode="before")
    @classmethod
    def _defaults_of_kind(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        match values.get("kind"):
            case "mirror" | "changelogs":
                return {"format": DELTA, **values}
            case "kafka":
                # Where epochs wait for their audit.
                path = f"{values.get('checkpoint')}-staging"
                return {"format": KAFKA, "path": path, "envelope": Envelope.WRAPPED, **values}
        return values

    @check_model(mode="after")
    def _of_kind(self) -> Self:
        for kinds, names in _OF_KIND.items():
            given = [name for name in names if name in self.model_fields_set]
            if self.kind not in kinds and given:
                raise ValueError(f"{', '.join(given)} goes with kind {' and '.join(kinds)} alone")
        if self.kind == "spark" and "format" not in self.model_fields_set:
            raise ValueError("kind spark needs format: one that Spark can write")
        if self.catalog is not None and self.format != ICEBERG:
            raise ValueError("catalog goes with format iceberg alone")
        if self.compact_every is not None and self.format not in TABLE_FORMATS:
            raise ValueError(f"compact_every goes with format {' and '.join(TABLE_FORMATS)} alone")
        if self.kind == "mirror" and "envelope" in self.model_fields_set:
            raise ValueError("mirrors have rows: leave envelope out")
        if self.kind == "changelogs" and "envelope" in self.model_fields_set:
            raise ValueError("changelogs have typed columns: leave envelope out")
        if self.kind == "kafka" and "kafka.bootstrap.servers" not in self.options:
            raise ValueError("options needs kafka.bootstrap.servers: HOST:PORT,...")
        if self.envelope not in STAMPED and (self.updated or self.mvcc_timestamp):
            raise ValueError(
                f"updated and mvcc_timestamp go with envelope {' and '.join(STAMPED)}; the others"
                " have the commit timestamp, or none"
            )
        return self

    @check_model(mode="after")
    def _apart(self) -> Self:
        if _one_spelling(self.path) == _one_spelling(self.checkpoint):
            raise ValueError(f"path and checkpoint are both {self.path}; they must differ")
        return self


_FORMATS_OF_KIND: Final = {
    "changelog": FORMATS,
    "changelogs": TABLE_FORMATS,
    "mirror": TABLE_FORMATS,
    "kafka": (KAFKA,),
}
_OF_KIND: Final = {
    ("mirror",): ("deletes",),
    ("mirror", "changelogs"): ("table_properties", "bad_records"),
    ("changelog",): ("partition_by",),
    ("changelog", "changelogs", "mirror"): ("compact_every",),
    ("kafka",): ("topic", "watermarks_topic", "resolved"),
    ("kafka", "spark"): ("options",),
}


class State(_Section):
    """The metadata store."""

    url: Annotated[str, Field(min_length=1)] = "sqlite:///out/state.db"
    keep: Annotated[DurationMs, Field(ge=60_000)] = 3_600_000


class Lease(_Section):
    """Who runs the pipeline when two processes could."""

    duration: Annotated[DurationMs, Field(ge=2_000, le=600_000)] = 6_000
    when_taken: Literal["wait", "exit"] = "wait"


class Spark(_Section):
    """The Spark that runs it."""

    # Without the second number Spark does not try a failed task again on one machine.
    master: str = "local[*,4]"
    conf: dict[str, str] = {}
    jars: str | None = None


class Http(_Section):
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


class Log(_Section):
    """How the process writes its log."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Trace(_Section):
    """Where spans go; off unless endpoint is set."""

    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None


class Settings(_Section):
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
