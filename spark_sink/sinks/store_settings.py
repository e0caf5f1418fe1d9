"""The settings of kinds that can write to an object store by its client, without Hadoop's."""

from __future__ import annotations

import hashlib
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from slackwater.own_folder import own_folder
from slackwater.setting_values import TextMapping
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.object_store import open_object_store, probe
from slackwater.spark_sink.sinks.sink_settings import TableSettings


class ObjectStoreSettings(TableSettings, ABC):
    """The settings of such kinds.

    Attributes:
        storage_options: of the object store that is written to; see open_object_store().
        takes_options: what a path and format have to be for that, for people.
    """

    takes_options: ClassVar[str]

    storage_options: TextMapping = Field(default_factory=dict)

    @classmethod
    @abstractmethod
    def is_by_client(cls, path: str, file_format: str) -> bool:
        """Return whether a format at a path is written by the client of an object store."""

    @property
    def is_written_by_client(self) -> bool:
        """Whether the output is in an object store that is reached by its client."""
        return self.is_by_client(self.path, self.format)

    @property
    def has_expendable_checkpoint(self) -> bool:
        """Whether it is the default one, in this machine's folder for temporary files."""
        return self.is_written_by_client and self.checkpoint == _temporary_checkpoint(self.path)

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

    def check(self) -> None:
        """Write, read and remove an object; see SinkSettings."""
        if self.is_written_by_client:
            probe(self.path, self.storage_options)

    @model_validator(mode="before")
    @classmethod
    def _checkpoint_beside_object_store(cls, values: Any) -> Any:
        """Fill in a checkpoint where the output says all that it says."""
        if not isinstance(values, dict) or "checkpoint" in values:
            return values
        path, file_format = values.get("path"), values.get("format", _default_format(cls))
        if not isinstance(path, str) or not isinstance(file_format, str):
            return values
        if not cls.is_by_client(path, file_format):
            return values
        return {**values, "checkpoint": _temporary_checkpoint(path)}

    @model_validator(mode="after")
    def _can_be_opened(self) -> Self:
        if self.is_written_by_client:
            try:
                open_object_store(self.path, self.storage_options)
            except ObjectStoreError as error:
                raise ValueError(error.message) from error
        elif self.storage_options:
            raise ValueError(
                f"storage_options goes with {self.takes_options}; what Spark writes takes its"
                " settings from spark.conf"
            )
        return self


def _default_format(kind: type[TableSettings]) -> object:
    return kind.model_fields["format"].default


def _temporary_checkpoint(path: str) -> str:
    """Return a folder for the checkpoint of an output, the same one at each start."""
    digest = hashlib.sha256(path.encode()).hexdigest()[:16]
    return str(Path(tempfile.gettempdir(), f"slackwater-checkpoint-{digest}"))
