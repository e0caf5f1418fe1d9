"""The settings of kinds that write tables, or can write them, on a disk or in an object store."""

import hashlib
import re
import tempfile
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, model_validator

from slackwater.own_folder import own_folder
from slackwater.setting_values import Duration
from slackwater.spark_sink.errors import ObjectStoreError, SinkError
from slackwater.spark_sink.formats import (
    BIGQUERY,
    DATABASES,
    DUCKLAKE,
    POSTGRESQL,
    database_of,
)
from slackwater.spark_sink.output.bigquery.address import parse_address, split_options
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, MaintenancePolicy
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.sinks.sink_settings import SinkSettings
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.in_postgresql.address import require_url
from slackwater.spark_sink.tables.registry import TABLE_FORMATS
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import ms_to_seconds

_HOUR_MS: Final = 3_600_000
# A stream finds in Delta's log where it stopped. In Iceberg a snapshot makes every commit larger.
_DAY_MS: Final = 24 * _HOUR_MS
# Characters that delta-rs misreads, or does not support, in a path.
_NOT_AS_IT_IS: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")


class _Path(NamedTuple):
    """The paths of a database: an example, and what refuses others."""

    example: str
    parse: Callable[[str], object]


_PATHS: Final[Mapping[str, _Path]] = {
    BIGQUERY: _Path("bq://project/dataset", parse_address),
    POSTGRESQL: _Path("postgresql://user@host/database", require_url),
}


def _never(value: object) -> object:
    return None if value == "never" else value


_Never = BeforeValidator(
    _never, json_schema_input_type=Annotated[int, Duration()] | Literal["never"] | None
)


class TableSettings(SinkSettings, ABC):
    """The settings of kinds that write tables, or can write them.

    Their output in an object store holds the position that a checkpoint holds.

    Attributes:
        compact_every: milliseconds after which small files become large ones; None for never.
        keep_versions: milliseconds for which a version that was replaced can still be read; None
            for ever.
        not_in_databases: keys that say how files are kept.
        are_streamed: others may read the output as a stream, and continue where they stopped.
    """

    not_in_databases: ClassVar[Sequence[str]] = ("compact_every", "keep_versions")
    are_streamed: ClassVar[bool] = True

    compact_every: Annotated[Annotated[int, Duration(60_000)] | None, _Never] = _HOUR_MS
    keep_versions: Annotated[Annotated[int, Duration(600_000)] | None, _Never] = _HOUR_MS

    @property
    def spark_needs(self) -> frozenset[str]:
        """Nothing for the format: tasks and the driver write it; see SinkSettings."""
        return super().spark_needs - {self.format}

    @property
    def table_format(self) -> TableFormat:
        """The format, which has to be one of tables."""
        return TABLE_FORMATS[self.format](self.catalog, self.storage_options)

    @property
    def place_path(self) -> str:
        """Beside the checkpoint, if the output is in a database; see SinkSettings.

        In a lake's folder, whatever else is there is of the catalog's, or is removed.
        """
        if self.format == DUCKLAKE:
            return f"{self.path}/log"
        return f"{self.checkpoint}-log" if database_of(self.path) else super().place_path

    @property
    def place_options(self) -> Mapping[str, str]:
        """Those of storage_options that are not BigQuery's; see SinkSettings."""
        return split_options(self.storage_options)[1]

    @property
    def bigquery_options(self) -> Mapping[str, str]:
        """BigQuery's own of storage_options."""
        return split_options(self.storage_options)[0]

    @model_validator(mode="after")
    def _database(self) -> Self:
        database = self.format if self.format in DATABASES else None
        if (named := database_of(self.path)) != database:
            shown = database or named or ""
            raise ValueError(
                f"format {shown} goes with a path such as {_PATHS[shown].example} only"
            )
        if database is not None:
            try:
                _PATHS[database].parse(self.path)
            except SinkError as error:
                raise ValueError(error.message) from error
            for key in self.not_in_databases:
                if key in self.model_fields_set:
                    raise ValueError(
                        f"{key} does not go with format {database}, which does that by itself"
                    )
        return self

    @property
    def maintenance_policy(self) -> MaintenancePolicy:
        """The intervals of maintenance."""
        if self.format in DATABASES:
            return NO_MAINTENANCE
        every, keep = self.compact_every, self.keep_versions
        is_streamed = self.are_streamed and self.format == Delta.using
        if is_streamed and "keep_versions" not in self.model_fields_set:
            keep = _DAY_MS
        return MaintenancePolicy(
            None if every is None else ms_to_seconds(every),
            None if keep is None else ms_to_seconds(keep),
        )

    @model_validator(mode="after")
    def _path_that_delta_rs_takes_as_it_is(self) -> Self:
        is_table_on_disk = self.format == Delta.using and self.is_on_disk
        if is_table_on_disk and (match := _NOT_AS_IT_IS.search(self.path)):
            raise ValueError(
                f"path has {match[0]!r}, which the writer of Delta tables takes for another"
                " character, or refuses: choose another name"
            )
        return self

    @property
    def has_expendable_checkpoint(self) -> bool:
        """Whether it is the default one, in this machine's folder for temporary files."""
        return self.is_in_store and self.checkpoint == _temporary_checkpoint(self.path)

    def claim_places(self) -> None:
        """Take the default checkpoint's folder; see SinkSettings."""
        if self.has_expendable_checkpoint:
            try:
                own_folder(Path(self.checkpoint))
            except OSError as error:
                raise ObjectStoreError(
                    f"the default checkpoint can't be used: {error}.",
                    "Set sink.checkpoint to a folder of this user's, or TMPDIR to another folder",
                ) from error

    @model_validator(mode="before")
    @classmethod
    def _checkpoint_beside_object_store(cls, values: Any) -> Any:
        """Fill in a checkpoint if the output holds the position, too."""
        if not isinstance(values, dict) or "checkpoint" in values:
            return values
        path = values.get("path")
        if not isinstance(path, str) or not is_object_store(path):
            return values
        return {**values, "checkpoint": _temporary_checkpoint(path)}


def _temporary_checkpoint(path: str) -> str:
    """Return a folder for the checkpoint of an output, the same one at each start."""
    digest = hashlib.sha256(path.encode()).hexdigest()[:16]
    return str(Path(tempfile.gettempdir(), f"slackwater-checkpoint-{digest}"))
