"""A file that a task writes and no reader sees yet: on a local disk, or in an object store."""

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import PublishError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# A variable of Spark's workers: the umask of the program that started Spark.
UMASK_OF_WORKERS: Final = "SLACKWATER_WORKER_UMASK"
# In bytes. A task hands on no more of a file, and another file only while it is below that.
IN_MEMORY_MAX: Final = 512 << 10


class LocalFile(io.RawIOBase):
    """A new file on a local disk."""

    def __init__(self, folder: str, name: str) -> None:
        self._name = name
        self._position = 0
        # A cluster's worker has an umask of its own.
        if umask := os.environ.get(UMASK_OF_WORKERS):
            os.umask(int(umask, 8))
        try:
            os.makedirs(folder, exist_ok=True)
            self._file = open(os.path.join(folder, name), "xb")  # noqa: SIM115 - close_and_name() closes it
        except OSError as error:
            raise _refused(error, folder) from error

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def write(self, data: Any) -> int:
        """Write bytes, and return their number."""
        try:
            self._position += self._file.write(data)
        except OSError as error:
            raise _refused(error, self._file.name) from error
        return memoryview(data).nbytes

    def close_and_name(self, *, is_staged: bool) -> tuple[bytes | None, str | None]:  # noqa: ARG002
        """Close the file, and return no content and its name."""
        try:
            self._file.close()
        except OSError as error:
            raise _refused(error, self._file.name) from error
        return None, self._name


def _refused(error: OSError, path: str) -> PublishError:
    return PublishError(
        f"{path} can't be written: {error.strerror}.",
        "Check that the directory is writable and has space; the epoch is read again",
    )


class SpillingFile(io.RawIOBase):
    """A file in memory that moves to the object store when it gets large."""

    def __init__(self, store: "Callable[[], ObjectStore]", name: str) -> None:
        self._store = store
        self._name = name
        self._memory = io.BytesIO()
        self._upload: Any = None
        self._position = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def write(self, data: Any) -> int:
        """Write bytes, and return their number."""
        size = memoryview(data).nbytes
        self._position += size
        if self._upload is not None:
            self._upload.write(bytes(data))
            return size
        self._memory.write(data)
        if self._position > IN_MEMORY_MAX:
            self._spill()
        return size

    def _spill(self) -> None:
        import obstore

        self._upload = obstore.open_writer(self._store(), self._name)
        self._upload.write(self._memory.getvalue())
        self._memory = io.BytesIO()

    def close_and_name(self, *, is_staged: bool) -> tuple[bytes | None, str | None]:
        """Close the file, and return its content or the name of the object that has it."""
        if is_staged and self._upload is None:
            self._spill()
        if self._upload is None:
            return self._memory.getvalue(), None
        self._upload.close()
        return None, self._name


StagedFile = LocalFile | SpillingFile
