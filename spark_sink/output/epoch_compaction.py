"""Compaction of epochs in files: those of many become one, beside the pipeline.

The merged file is staged, and gets its name after a commit, which only the owner of the pipeline
can add: so two processes never replace the same epochs twice. In an object store it is one object,
because a reader would see the first of several before the others. The small epochs stay for a time,
because a reader may have listed them; a query that reads both leaves them out by epoch_groups.
"""

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_groups import Group, first_of, next_group, sort_names
from slackwater.spark_sink.output.epoch_place import EpochPlace, StoredEpoch
from slackwater.spark_sink.output.file_log import FileLog
from slackwater.spark_sink.output.merged_files import schema_of, sync, write_merged

_log = logging.getLogger(__name__)


class EpochCompaction:
    """The compaction of one output's epochs.

    Args:
        place: where they stand.
        log: their log, as this process adds to it.
    """

    def __init__(self, place: EpochPlace, log: FileLog) -> None:
        self._place = place
        self._epochs = log

    def run(self, keep_s: float | None) -> None:
        """Compact all groups that are complete, and remove epochs that were replaced for long.

        Args:
            keep_s: the seconds for which replaced epochs stay; None for ever.

        Raises:
            PublishError: another process has taken the pipeline over, or the place fails.
            OSError: the disk for temporary files is full, or refuses.
        """
        with self._place.translating():
            # Before the list: another process may compact while this one has lost the pipeline.
            owner, epochs = self._epochs.owner, self._place.epochs()
            while (group := _next_group(epochs)) is not None:
                done = self._compact(group, epochs, owner)
                _log.info("%s: %d epochs are one now", self._place.path, len(done.folders))
                owner, epochs = self._epochs.owner, self._place.epochs()
            if keep_s is not None:
                self._remove_replaced(epochs, keep_s)

    def _compact(self, group: Group, epochs: Mapping[str, StoredEpoch], owner: str) -> Group:
        """Compact a group, as far as its files become one object if they have to."""
        if self._place.is_one_object:
            self._require_no_folders(group, epochs)
        names = [name for epoch in group.folders for name in epochs[epoch].names]
        with self._place.local_files(names) as local, self._place.merging(owner) as merged:
            files = _by_epoch(names, local)
            part = self._of_one_object(group, files) if self._place.is_one_object else group
            by_folder: defaultdict[str, list[Path]] = defaultdict(list)
            for name in part.folders:
                for folder, file in files.get(name, ()):
                    by_folder[folder].append(file)
            for folder, paths in by_folder.items():
                (merged / folder).mkdir(parents=True, exist_ok=True)
                if len(part.folders) == 1 and not self._place.is_one_object:
                    for path in paths:
                        _link(path, merged / folder / path.name)
                else:
                    write_merged(paths, merged / folder)
            self._epochs.replace(self._place.stage_merged(owner, merged, part.name), owner)
        return part

    def _of_one_object(
        self, group: Group, files: Mapping[str, Sequence[tuple[str, Path]]]
    ) -> Group:
        """Return the first epochs of a group, whose files have one schema."""
        path, first = self._place.path, files[group.folders[0]]
        schema = schema_of(first[0][1])
        count = next(
            (
                number
                for number, of_epoch in enumerate(files.values())
                if any(schema_of(file) != schema for _, file in of_epoch)
            ),
            len(files),
        )
        part = first_of(group, count)
        if part is None:
            raise PublishError(
                f"{path}: {group.folders[0]} and its scan have files of different columns, which"
                " can't become one."
            )
        return part

    def _require_no_folders(self, group: Group, epochs: Mapping[str, StoredEpoch]) -> None:
        """Refuse epochs with folders in them: several objects would not appear at one moment."""
        for name in (name for epoch in group.folders for name in epochs[epoch].names):
            if len(PurePosixPath(name).parts) > 2:
                raise PublishError(
                    f"{self._place.path}: {name} is in a folder of its epoch, and only epochs"
                    " without folders are compacted in an object store."
                )

    def _remove_replaced(self, epochs: Mapping[str, StoredEpoch], keep_s: float) -> None:
        now_s = time.time()
        replaced = {
            name: epochs[name]
            for name, by in sort_names(epochs).replaced
            if now_s - epochs[by].changed_at >= keep_s
        }
        if replaced:
            self._place.remove_epochs(replaced)


def _next_group(epochs: Mapping[str, StoredEpoch]) -> Group | None:
    names = sort_names(epochs).epochs
    return next_group(names, [epochs[name].size for name in names])


def _by_epoch(names: Sequence[str], files: Sequence[Path]) -> dict[str, list[tuple[str, Path]]]:
    """Return the files of each epoch, with their folders in it, by the names of both."""
    by_epoch: defaultdict[str, list[tuple[str, Path]]] = defaultdict(list)
    for name, file in zip(names, files, strict=True):
        epoch, *folders, _ = PurePosixPath(name).parts
        by_epoch[epoch].append(("/".join(folders), file))
    return by_epoch


def _link(path: Path, target: Path) -> None:
    """Link a file into another folder, or copy it if the system forbids the link."""
    try:
        target.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(path, target)
        sync(target)
