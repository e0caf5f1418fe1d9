"""The settings of kinds whose output in an object store may say where to go on."""

from __future__ import annotations

import hashlib
import tempfile
from abc import ABC
from pathlib import Path
from typing import Any

from pydantic import model_validator

from slackwater.own_folder import own_folder
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.sinks.sink_settings import TableSettings


class ObjectStoreSettings(TableSettings, ABC):
    """The settings of kinds whose output in an object store says all that a checkpoint says."""

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
        """Fill in a checkpoint where the output says all that it says."""
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
