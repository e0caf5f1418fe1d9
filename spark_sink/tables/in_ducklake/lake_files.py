"""The files of a DuckLake, as DuckDB reads and writes them."""

import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from obstore.fsspec import BufferedFile, FsspecStore
from obstore.store import LocalStore, ObjectStore

from slackwater.spark_sink.output.merged_files import sync
from slackwater.spark_sink.output.object_store import is_object_store, open_object_store

PROTOCOL: Final = "lake"
# As DuckDB has it, for this process alone: the lake states the true one.
ROOT: Final = f"{PROTOCOL}://files/"
_INFOS_MAX: Final = 10_000


class LakeFiles(FsspecStore):
    """The files of a DuckLake.

    DuckDB removes a transaction's files if its commit fails. But a commit whose answer was lost has
    not failed, and readers need the files: so no file is removed but by maintenance.

    Args:
        root: the folder or URL of the files.
        options: of an object store; see open_object_store().

    Attributes:
        are_removed: whether files that are to be removed are.
    """

    cachable = False

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        with warnings.catch_warnings():
            # That it does not know the protocol.
            warnings.simplefilter("ignore")
            super().__init__(PROTOCOL)  # type: ignore[call-overload]
        self._folder = None if is_object_store(root) else Path(root)
        self._root, self._options = root, options
        self.are_removed = False
        # Of files in a store: none is written twice, and DuckDB asks many times.
        self._infos: dict[str, dict[str, Any]] = {}

    def remove_left_uploads(self, older_than_s: float) -> None:
        """Remove what uploads to a disk have left whose process was killed.

        They are written as FILE#NUMBER, and then renamed; no listing has them.
        """
        if self._folder is None:
            return
        before = time.time() - older_than_s
        for file in self._folder.rglob("*#*"):
            # It may be one of now, and get its name.
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()

    def _construct_store(self, bucket: str) -> ObjectStore:  # noqa: ARG002
        if self._folder is None:
            return open_object_store(self._root, self._options)
        return LocalStore(self._folder, mkdir=True)

    async def _isdir(self, path: str) -> bool:
        # A store has no folders, which would have to be made, and DuckDB asks at each statement.
        return self._folder is None or bool(await super()._isdir(path))

    async def _isfile(self, path: str) -> bool:
        # Every file's name has an ending.
        if self._folder is None and "." not in path.rpartition("/")[2]:
            return False
        return bool(await super()._isfile(path))

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        info = self._infos.get(path)
        if info is None:
            info = await super()._info(path, **kwargs)
            if self._folder is None:
                if len(self._infos) >= _INFOS_MAX:
                    self._infos.clear()
                self._infos[path] = info
        return info

    def modified(self, path: str) -> datetime:
        """Return when a file was written."""
        written: datetime = self.info(path)["last_modified"]
        return written

    async def _rm(self, path: Any, *args: Any, **kwargs: Any) -> None:
        if self.are_removed:
            await super()._rm(path, *args, **kwargs)

    async def _glob(self, path: str, *args: Any, **kwargs: Any) -> list[str]:  # noqa: ARG002
        # DuckDB asks for all files, and for the time of each; a folder has none.
        if self._folder is not None:
            return sorted(await self._find(path.removesuffix("**")))
        listed = await self._construct_store("").list().collect_async()
        # Otherwise each would be a request, one after the other, and an epoch would wait for all.
        self._infos = {
            f"{ROOT}{file['path']}": {
                "name": file["path"],
                "size": file["size"],
                "type": "file",
                "last_modified": file["last_modified"],
            }
            for file in listed
        }
        return sorted(self._infos)

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> BufferedFile:
        if self._folder is None or mode == "rb":
            return super()._open(path, mode, *args, **kwargs)
        file = self._folder / self._split_path(path)[1]
        return _DurableFile(self, path, "wb", file=file, root=self._folder.parent)


class _DurableFile(BufferedFile):
    """A file on a disk that is there after a power failure once it is closed."""

    def __init__(self, *args: Any, file: Path, root: Path, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file = file
        # Some may be new.
        self._folders = [folder for folder in file.parents if folder.is_relative_to(root)]

    def close(self) -> None:
        was_closed = self.closed
        super().close()
        if not was_closed:
            sync(self._file)
            for folder in self._folders:
                sync(folder)
