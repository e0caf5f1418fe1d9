"""The rules by which epochs become one, over the names of their folders.

A compacted folder has the name of its last epoch and a suffix. Compaction goes forward in time, so
the newest compacted folder divides them: everything up to it is in the compacted folders, and
everything after it in the epochs' own. So a reader that has listed the folders once, at whatever
moment, has each record once.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from slackwater.spark_sink.output.epoch_names import COMPACTED

# In bytes: a group that reaches it is complete. Fixed, so that two processes make the same groups.
GROUP_SIZE: Final = 128 << 20
# The folder of an epoch, or of a chunk of an initial scan, which has a number.
_EPOCH: Final = re.compile(r"(epoch=(\d{8})T\d{6}\.\d{6}Z)(?:\.\d{6})?")
_FORMAT: Final = "epoch=%Y%m%dT%H%M%S.%fZ"
# More than the age at which a rescan gives a chunk up.
_UNREST: Final = timedelta(hours=2)
_COMPACTED: Final = re.compile(rf"(epoch=\d{{8}}T\d{{6}}\.\d{{6}}Z){re.escape(COMPACTED)}")


@dataclass(frozen=True, slots=True)
class Group:
    """Epochs that become one folder.

    Attributes:
        name: of the compacted folder.
        folders: the names of the epochs', in their order.
    """

    name: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpochNames:
    """The folders of an output.

    Attributes:
        epochs: the names of those that count, in their order.
        replaced: the names of those whose records are in a compacted folder, with its name.
    """

    epochs: tuple[str, ...]
    replaced: tuple[tuple[str, str], ...]


def sort_names(names: Iterable[str]) -> EpochNames:
    """Return the folders among the names in an output's directory."""
    listed = sorted(names)
    pending = list(filter(_COMPACTED.fullmatch, listed))
    epochs, replaced = [], []
    for name in listed:
        if not _EPOCH.fullmatch(name):
            continue
        # Chunks of a scan sort after an epoch of the same low watermark, and before its suffix.
        while pending and name > pending[0]:
            pending.pop(0)
        if pending:
            replaced.append((name, pending[0]))
        else:
            epochs.append(name)
    return EpochNames(tuple(epochs), tuple(replaced))


def next_group(epochs: Sequence[str], sizes: Sequence[int]) -> Group | None:
    """Return the oldest group that is complete; None if there is none.

    A group is complete when its epochs are large enough together, or a day is over. The last two
    hours are never part of it: the last epoch may be published again, after a crash, and so may a
    chunk of a rescan, which has the low watermark of an epoch up to an hour before.

    Args:
        epochs: the names of all folders that count, in their order.
        sizes: of their files, in bytes.
    """
    closed = _at_rest(epochs)
    if not closed:
        return None
    day = _day(closed[0])
    total = 0
    for place, (name, size) in enumerate(zip(closed, sizes, strict=False)):
        if _day(name) != day:
            return _group(closed[:place])
        total += size
        following = closed[place + 1] if place + 1 < len(closed) else None
        is_whole = following is None or _watermark(following) != _watermark(name)
        if total >= GROUP_SIZE and is_whole:
            return _group(closed[: place + 1])
    return _group(closed) if _day(epochs[len(closed)]) != day else None


def first_of(group: Group, count: int) -> Group | None:
    """Return a group of the first folders of another one; None if there can't be one.

    Args:
        group: the other one.
        count: of how many folders at most. Those of one low watermark stay together.
    """
    folders, following = group.folders[:count], group.folders[count : count + 1]
    while folders and following and _watermark(folders[-1]) == _watermark(following[0]):
        folders = folders[:-1]
    return _group(folders) if folders else None


def current_epochs(changes: str) -> str:
    """Return a changelog of epochs without the folders that a large one has replaced.

    Spark lists the folders once for all uses of a name in WITH. Listed twice, they might have a
    new large one in between.

    Args:
        changes: the changelog's name in Spark SQL.
    """
    is_large = f"epoch LIKE '%{COMPACTED}'"
    newest = f"SELECT coalesce(max(epoch), '') FROM epochs WHERE {is_large}"  # noqa: S608
    return (
        f"(WITH epochs AS (SELECT * FROM {changes})"  # noqa: S608
        f" SELECT * FROM epochs WHERE ({is_large}) != (epoch > ({newest})))"
    )


def _at_rest(epochs: Sequence[str]) -> Sequence[str]:
    """Return the epochs before the last two hours."""
    if not epochs:
        return epochs
    last = datetime.strptime(_watermark(epochs[-1]), _FORMAT).replace(tzinfo=UTC)
    since = f"{last - _UNREST:{_FORMAT}}"
    return [name for name in epochs if _watermark(name) < since]


def _group(folders: Sequence[str]) -> Group:
    return Group(f"{_watermark(folders[-1])}{COMPACTED}", tuple(folders))


def _watermark(name: str) -> str:
    match = _EPOCH.fullmatch(name)
    assert match is not None  # noqa: S101 - sort_names() has seen it
    return match[1]


def _day(name: str) -> str:
    return _watermark(name)[: len("epoch=20260131")]
