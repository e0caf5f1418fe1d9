"""Compaction of epochs in an object store: the objects of many become one, beside the pipeline.

The large object is staged, and gets its name by a copy after a commit, which only the owner of the
pipeline can add: so two processes never replace the same epochs twice. It is one object, because a
reader would see the first of several before the others. The small ones stay for a time, as on a
local disk: see epoch_groups.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.epoch_groups import Group, first_of, next_group, sort_names
from slackwater.spark_sink.output.epoch_objects import EpochObjects
from slackwater.spark_sink.output.merged_files import schema_of, write_merged
from slackwater.spark_sink.output.object_store import (
    read_together,
    remove_together,
    requests_to,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_log = logging.getLogger(__name__)

# Where the names of epochs begin.
_EPOCHS: Final = "epoch="


@dataclass(frozen=True, slots=True)
class _Object:
    name: str
    size: int
    modified: datetime


class ObjectCompaction:
    """Compacts the epochs of one output.

    Args:
        store: the output's.
        path: its URL, for messages.
        objects: its epochs, as this process publishes them.
    """

    def __init__(self, store: ObjectStore, path: str, objects: EpochObjects) -> None:
        self._store = store
        self._path = path
        self._objects = objects

    def run(self, keep_s: float | None) -> None:
        """Compact all groups that are complete, and remove epochs that were replaced for long.

        Args:
            keep_s: how many seconds epochs stay that were replaced; None for ever.

        Raises:
            PublishError: another process has taken the pipeline over, or the store fails.
            OSError: the disk for temporary files is full, or refuses.
        """
        with requests_to(self._path):
            listed = self._listed()
            while (group := _next_group(listed)) is not None:
                done = self._compact(group, listed)
                _log.info("%s: %d epochs are one object now", self._path, len(done.folders))
                listed = self._listed()
            if keep_s is not None:
                self._remove_replaced(listed, keep_s)

    def _listed(self) -> dict[str, list[_Object]]:
        """Return the objects of each epoch, in their order."""
        listed = defaultdict(list)
        for page in self._store.list(offset=_EPOCHS):
            for item in page:
                folder, _, _ = item["path"].partition("/")
                listed[folder].append(_Object(item["path"], item["size"], item["last_modified"]))
        return {
            folder: sorted(objects, key=lambda one: one.name) for folder, objects in listed.items()
        }

    def _compact(self, group: Group, listed: Mapping[str, Sequence[_Object]]) -> Group:
        """Compact a group as far as its files have one schema, and return that part of it."""
        with tempfile.TemporaryDirectory(prefix="slackwater-") as name:
            small, large = Path(name, "small"), Path(name, "large")
            large.mkdir()
            files = self._downloaded({folder: listed[folder] for folder in group.folders}, small)
            part = self._of_one_schema(group, files)
            chosen = files[: len(part.folders)]
            write_merged([file for of_epoch in chosen for file in of_epoch], large)
            [merged] = large.iterdir()
            staged = f"{STAGING_FOLDER}/{self._objects.owner}/{uuid.uuid4().hex}"
            self._store.put(staged, merged)
            # If this fails, the commit may have been made all the same: what is staged stays. The
            # next process that takes the pipeline over removes it.
            self._objects.replace(f"{part.name}/{merged.name}", staged)
        return part

    def _downloaded(
        self, epochs: Mapping[str, Sequence[_Object]], folder: Path
    ) -> list[list[Path]]:
        """Return copies of the files of each epoch."""
        names = [one.name for objects in epochs.values() for one in objects]
        for name in names:
            if len(PurePosixPath(name).parts) > 2:
                raise PublishError(
                    f"{self._path}: {name} is in a folder of its epoch, and only epochs without"
                    " folders are compacted in an object store."
                )
        files: dict[str, list[Path]] = {name: [] for name in epochs}
        for name, content in zip(names, read_together(self._store, names), strict=True):
            if content is None:
                raise PublishError(f"{self._path}: {name} was removed meanwhile.")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            files[target.parent.name].append(target)
        return list(files.values())

    def _of_one_schema(self, group: Group, files: Sequence[Sequence[Path]]) -> Group:
        first = schema_of(files[0][0])
        count = next(
            (
                number
                for number, of_epoch in enumerate(files)
                if any(schema_of(file) != first for file in of_epoch)
            ),
            len(files),
        )
        part = first_of(group, count)
        if part is None:
            raise PublishError(
                f"{self._path}: {group.folders[0]} and its scan have files of different columns,"
                " which can't become one."
            )
        return part

    def _remove_replaced(self, listed: Mapping[str, Sequence[_Object]], keep_s: float) -> None:
        now = datetime.now(UTC)
        for name, by in sort_names(listed).replaced:
            age = now - max(one.modified for one in listed[by])
            if age.total_seconds() >= keep_s:
                remove_together(self._store, [one.name for one in listed[name]])


def _next_group(listed: Mapping[str, Sequence[_Object]]) -> Group | None:
    epochs = sort_names(listed).epochs
    return next_group(epochs, [sum(one.size for one in listed[name]) for name in epochs])
