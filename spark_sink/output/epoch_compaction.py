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
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import ORC, PARQUET
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.epoch_groups import Group, next_group, sort_names
from slackwater.spark_sink.output.file_writer import format_writer

_log = logging.getLogger(__name__)

# In bytes of Arrow: what becomes a row group.
_ROW_GROUP: Final = 64 << 20
_COPIED: Final = 1 << 20
_FORMATS: Final = (PARQUET, ORC)


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
        try:
            for folder, files in self._by_folder(group).items():
                (staged / folder).mkdir(parents=True, exist_ok=True)
                if len(group.folders) == 1:
                    _link(files, staged / folder)
                else:
                    _write_merged(files, staged / folder)
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
        _sync(self._root)

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
            if now_s - (self._root / by).stat().st_mtime >= keep_s:
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
            _sync(target)


def _write_merged(files: Sequence[Path], folder: Path) -> None:
    """Write the content of files to a new file, or to one for each schema that they have."""
    suffix = _suffix(files[0])
    if any(_suffix(file) != suffix for file in files):
        raise PublishError(f"{folder}: the files have several formats.")
    file_format = next((name for name in _FORMATS if suffix.endswith(name)), None)
    if file_format is None:
        _concatenate(files, folder / f"part-00000{suffix}")
        return
    for number, tables in enumerate(_of_one_schema(files, file_format)):
        merged = folder / f"part-{number:05d}.{file_format}"
        with merged.open("xb") as out:
            with closing(format_writer(out, file_format)) as writer:
                for table in _in_row_groups(tables):
                    writer.write(table)
            out.flush()
            os.fsync(out.fileno())


def _suffix(file: Path) -> str:
    """Return a name from its format on: Spark puts the compression before it, or after it."""
    return "".join(file.suffixes[-2:]) if file.suffix in {".gz", ".bz2"} else file.suffix


def _concatenate(files: Sequence[Path], merged: Path) -> None:
    """Write lines one after the other; so can compressed files be that Spark writes as text."""
    with merged.open("xb") as out:
        for file in files:
            with file.open("rb") as source:
                shutil.copyfileobj(source, out, _COPIED)
        out.flush()
        os.fsync(out.fileno())


def _of_one_schema(files: Sequence[Path], file_format: str) -> Iterator[Iterator[pa.Table]]:
    """Yield the tables of adjacent files that have the same schema."""
    pending = list(files)
    while pending:
        schema = _schema(pending[0], file_format)
        end = next(
            (n for n, file in enumerate(pending) if not _schema(file, file_format).equals(schema)),
            len(pending),
        )
        yield (table for file in pending[:end] for table in _tables(file, file_format))
        del pending[:end]


def _schema(file: Path, file_format: str) -> pa.Schema:
    if file_format == PARQUET:
        return pq.read_schema(file).remove_metadata()
    return orc.ORCFile(file).schema.remove_metadata()


def _tables(file: Path, file_format: str) -> Iterator[pa.Table]:
    if file_format == PARQUET:
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        parts: Any = (opened.read_row_group(n) for n in range(opened.num_row_groups))
    else:
        stripes = orc.ORCFile(file)
        parts = (pa.table(stripes.read_stripe(n)) for n in range(stripes.nstripes))
    for table in parts:
        yield table.replace_schema_metadata()


def _in_row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        pending.append(table)
        size += table.nbytes
        if size >= _ROW_GROUP:
            yield pa.concat_tables(pending)
            pending, size = [], 0
    if pending:
        yield pa.concat_tables(pending)


def _sync_folders(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        _sync(Path(path))


def _sync(path: Path) -> None:
    """Have a file or the names in a folder survive a power cut: the small files are removed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
