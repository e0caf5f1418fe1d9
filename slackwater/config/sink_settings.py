"""The settings of the sink."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic import model_validator as check_model

from slackwater.config.setting_types import DurationMs, Section, from_json, listed
from slackwater.spark_sink.envelopes.registry import envelopes, with_timestamp_options
from slackwater.spark_sink.formats import (
    AVRO,
    DELTA,
    FORMATS,
    ICEBERG,
    JSON,
    KAFKA,
    MESSAGE_FORMATS,
    TABLE_FORMATS,
)


def _envelope_name(value: object) -> object:
    names = [repr(name) for name in envelopes()]
    if repr(value) not in names:
        raise ValueError(f"Input should be {', '.join(names[:-1])} or {names[-1]}")
    return value


EnvelopeName = Annotated[str, BeforeValidator(_envelope_name)]
PartitionColumn = Literal["table_name", "date"]


class Sink(Section):
    """What becomes of the records."""

    kind: Literal["changelog", "changelogs", "mirror", "kafka", "spark"] = "changelog"
    format: Annotated[str, Field(min_length=1)] = "parquet"
    path: Annotated[str, Field(min_length=1)]
    checkpoint: Annotated[str, Field(min_length=1)]
    partition_by: Annotated[tuple[PartitionColumn, ...], BeforeValidator(listed)] = ()
    # Of table formats.
    compact_every: Annotated[DurationMs, Field(ge=60_000)] | None = None
    # Of format iceberg.
    catalog: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")] | None = None
    envelope: EnvelopeName = "record"
    updated: bool = False
    mvcc_timestamp: bool = False
    # Of kind mirror.
    deletes: Literal["apply", "mark"] = "apply"
    # Of kinds mirror and changelogs.
    table_properties: Annotated[
        dict[str, str], BeforeValidator(from_json), Field(default_factory=dict)
    ]
    bad_records: Literal["stop", "dead_letter"] = "stop"
    # Of kinds kafka and spark.
    options: Annotated[dict[str, str], BeforeValidator(from_json), Field(default_factory=dict)]
    # Of kind kafka.
    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]|\{table\})+$")] = "{table}"
    watermarks_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    resolved: DurationMs | None = None
    # Of format avro.
    confluent_schema_registry: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None

    @property
    def needs(self) -> str:
        """The format whose jars Spark needs."""
        return KAFKA if self.kind == "kafka" else self.format

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
                return {"format": JSON, "path": path, "envelope": "wrapped", **values}
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
        has_registry = self.confluent_schema_registry is not None
        if self.kind == "kafka" and has_registry != (self.format == AVRO):
            raise ValueError(
                "format avro needs confluent_schema_registry, and no other does: the registry's URL"
            )
        if self.envelope not in with_timestamp_options() and (self.updated or self.mvcc_timestamp):
            takers = " and ".join(with_timestamp_options())
            raise ValueError(
                f"updated and mvcc_timestamp go with envelope {takers}; the others have the commit"
                " timestamp, or none"
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
    "kafka": MESSAGE_FORMATS,
}
_OF_KIND: Final = {
    ("mirror",): ("deletes",),
    ("mirror", "changelogs"): ("table_properties", "bad_records"),
    ("changelog",): ("partition_by",),
    ("changelog", "changelogs", "mirror"): ("compact_every",),
    ("kafka",): ("topic", "watermarks_topic", "resolved", "confluent_schema_registry"),
    ("kafka", "spark"): ("options",),
}


def _one_spelling(path: str) -> str:
    scheme, separator, rest = path.rpartition("://")
    if not separator:
        return str(Path.cwd() / posixpath.normpath(path))
    return f"{scheme}{separator}{posixpath.normpath(rest)}"
