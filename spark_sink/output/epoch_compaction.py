"""Compaction of epochs on a local disk: the folders of many become one, beside the pipeline.

The large folder appears by one rename. The small ones stay for a time, because a reader may have
listed them; a query that reads both leaves them out by their names: see epoch_groups.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.epoch_groups import Group, next_group, sort_names
from slackwater.spark_sink.output.merged_files import sync, write_merged

_log = logging.getLogger(__name__)


class EpochCompaction:
    """Compacts the epochs of one output.

    Args:
        root: the output's directory.
        owner: names this process's staging directory, which a successor removes.
    """

    def __init__(self, root: Path, owner: str) -> None:
        self._root = root
        self._staging = root / STAGING_FOLDER / owner
        # A folder's files never change.
        self._sizes: dict[str, int] = {}

    def run(self, keep_s: float | None) -> None:
        """Compact all groups that are complete, and remove folders that were replaced for long.

        Args:
            keep_s: how many seconds folders stay that were replaced; None for ever.

        Raises:
            PublishError: another process compacts or has compacted the same epochs.
            OSError: the disk is full, or refuses.
        """
        while (group := self._next_group()) is not None:
            self._compact(group)
            _log.info("%s: %d epochs are one folder now", self._root, len(group.folders))
        if keep_s is not None:
            self._remove_replaced(keep_s)

    def _next_group(self) -> Group | None:
        epochs = sort_names(os.listdir(self._root)).epochs
        sizes = [self._size(name) for name in epochs]
        self._sizes = dict(zip(epochs, sizes, strict=True))
        return next_group(epochs, sizes)

    def _size(self, name: str) -> int:
        if name in self._sizes:
            return self._sizes[name]
        return sum(file.stat().st_size for file in _files(self._root / name))

    def _compact(self, group: Group) -> None:
        staged = self._staging / uuid.uuid4().hex
        by_folder = self._by_folder(group)
        try:
            # Before the first file: if somebody removes them, none comes back without its files.
            for folder in by_folder:
                (staged / folder).mkdir(parents=True, exist_ok=True)
            for folder, files in by_folder.items():
                if len(group.folders) == 1:
                    _link(files, staged / folder)
                else:
                    write_merged(files, staged / folder)
            _sync_folders(staged)
            os.rename(staged, self._root / group.name)
        except FileNotFoundError as error:
            # A successor has removed what this process has staged, or the folders that it reads.
            raise PublishError(f"{self._root / group.name} is made by another process.") from error
        except OSError:
            if not (self._root / group.name).exists():
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        sync(self._root)

    def _by_folder(self, group: Group) -> dict[str, list[Path]]:
        """Return the files of each folder inside the epochs', in the order of the epochs."""
        by_folder: defaultdict[str, list[Path]] = defaultdict(list)
        for name in group.folders:
            epoch = self._root / name
            for file in sorted(_files(epoch)):
                by_folder[str(file.parent.relative_to(epoch))].append(file)
        return by_folder

    def _remove_replaced(self, keep_s: float) -> None:
        now_s = time.time()
        for name, by in sort_names(os.listdir(self._root)).replaced:
            # As of its rename, which changes when its status was changed, and nothing else.
            if now_s - (self._root / by).stat().st_ctime >= keep_s:
                shutil.rmtree(self._root / name)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that readers see."""
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]
        yield from (Path(path, name) for name in names if name[0] not in "._")


def _link(files: Sequence[Path], folder: Path) -> None:
    """Have files in another folder, too, without copying them if the disk has links."""
    for file in files:
        target = folder / file.name
        try:
            target.hardlink_to(file)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(file, target)
            sync(target)


def _sync_folders(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        sync(Path(path))
