"""Object stores as the output's place: Amazon S3, Google Cloud Storage and Azure.

They have no rename, and need none: a PUT that succeeds only if its name is free (S3's
If-None-Match, Cloud Storage's generation 0, Azure's etag) decides between two processes. The client
is obstore, whose credentials are those of the environment: keys, a role of the pod, the machine's.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import ObjectStoreError, PublishError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Those of Hadoop's connectors among them.
SCHEMES: Final = frozenset({"s3", "s3a", "gs", "abfs", "abfss", "az"})
_ALLOW_HTTP: Final = "allow_http"
# The suffixes of options that are addresses.
_ADDRESSES: Final = ("endpoint", "endpoint_url", "base_url")
# In the addresses at which a cloud's machine is asked for its credentials.
_OF_MACHINES: Final = (
    "/latest/api/token",
    "/latest/meta-data/",
    "/computeMetadata/",
    "/metadata/identity",
)
# After a refused request the epoch is tried again by the pipeline, which says so in its log.
_RETRIES: Final = 5
# Of a request, as a copy of a large file.
_TIMEOUT: Final = "300s"
# Requests for small objects, each of which mostly waits.
_AT_ONCE: Final = 16


def is_object_store(path: str) -> bool:
    """Return whether a path is the URL of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def open_object_store(path: str, options: Mapping[str, str]) -> ObjectStore:
    """Return a store whose names are relative to a URL; nothing is requested yet.

    Args:
        path: the URL, such as gs://bucket/changes.
        options: object_store's settings by name, such as aws_region; the environment has the rest.

    Raises:
        ObjectStoreError: the URL or an option can't be used.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    settings = dict(options)
    try:
        is_http = _boolean(_ALLOW_HTTP, settings.pop(_ALLOW_HTTP, "false"))
        _check_addresses(settings, is_http=is_http)
        with _panics_as_errors():
            opened: ObjectStore = from_url(
                path.rstrip("/"),
                config=settings,  # type: ignore[call-overload]
                client_options={_ALLOW_HTTP: is_http, "timeout": _TIMEOUT},
                retry_config={"max_retries": _RETRIES},
            )
    except (BaseError, ValueError) as error:
        raise ObjectStoreError(
            f"{path} can't be opened: {_reason(error)}.",
            "Look at sink.path and sink.storage_options",
        ) from error
    return opened


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}; it can be true or false")
    return text.lower() == "true"


def _check_addresses(settings: Mapping[str, str], *, is_http: bool) -> None:
    """Refuse addresses that the client would fail at without an explanation.

    Raises:
        ValueError: an address is not a URL, or has no TLS and that is not permitted.
    """
    for name, address in settings.items():
        if not name.endswith(_ADDRESSES):
            continue
        scheme = address.partition("://")[0]
        if scheme not in ("http", "https"):
            raise ValueError(f"{name} is {address!r}, which is not a URL such as https://host")
        if scheme == "http" and not is_http:
            raise ValueError(f'{name} {address} has no TLS; {_ALLOW_HTTP}: "true" permits that')


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Raise a ValueError for a panic of the client's, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error


@contextmanager
def requests_to(path: str, *, is_start: bool = False, purpose: str = "a request") -> Iterator[None]:
    """Turn the errors of an object store's client into ours.

    Args:
        path: the output's URL, for messages.
        purpose: of the request, likewise.
        is_start: nothing has been written yet, so that a refusal is the settings' fault. Later it
            may pass, as when credentials are replaced.

    Raises:
        ObjectStoreError: at the start, the store refuses, or there is no such bucket.
        PublishError: it refuses, fails, or does not answer.
    """
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        message = f"{path}: {purpose} failed: {_reason(error)}."
        if any(part in message for part in _OF_MACHINES):
            hint = "There are no credentials in the environment, and the machine has none either"
            raise (ObjectStoreError if is_start else PublishError)(message, hint) from error
        refusals = (PermissionDeniedError, UnauthenticatedError, FileNotFoundError)
        # A list request that is refused fails without a class of its own.
        is_refused = any(status in message for status in ("403 Forbidden", "404 Not Found"))
        if isinstance(error, refusals) or is_refused:
            hint = (
                "Look at the bucket's name, at sink.storage_options, and at the rights: the"
                " pipeline lists, reads, writes and deletes objects there"
            )
            raise (ObjectStoreError if is_start else PublishError)(message, hint) from error
        hint = "Check the network, and the address in sink.storage_options"
        raise PublishError(message, hint) from error


def names_below(store: ObjectStore, folder: str, after: str = "") -> list[str]:
    """Return the names of the objects below a folder, in order.

    Args:
        store: the store.
        folder: the folder's name.
        after: only names after this one in the folder.
    """
    offset = f"{folder}/{after}" if after else None
    pages = store.list(f"{folder}/", offset=offset)
    return sorted(item["path"] for page in pages for item in page)


def create(store: ObjectStore, name: str, content: bytes) -> str | None:
    """Create an object and return its etag, or None if another one has the name.

    A client that did not get the answer asks again, and is then refused by its own object. So the
    content decides, and has to be the creator's own.
    """
    from obstore.exceptions import AlreadyExistsError

    try:
        return store.put(name, content, mode="create", use_multipart=False)["e_tag"]
    except AlreadyExistsError:
        return etag(store, name) if read(store, name) == content else None


def etag(store: ObjectStore, name: str) -> str | None:
    """Return the tag of an object's content; None if it does not exist."""
    try:
        return store.head(name)["e_tag"]
    except FileNotFoundError:
        return None


def read(store: ObjectStore, name: str) -> bytes | None:
    """Return an object's content; None if it does not exist."""
    try:
        return bytes(store.get(name).bytes())
    except FileNotFoundError:
        return None


def probe(path: str, options: Mapping[str, str]) -> None:
    """Write, read and remove an object, and check that its name is protected meanwhile.

    Raises:
        ObjectStoreError: a step is refused, there is no such bucket, or the store creates an object
            again that exists.
        PublishError: the store does not answer, or fails.
    """
    name = f"_probe-{uuid.uuid4().hex}"
    store = open_object_store(path, options)
    with requests_to(path, is_start=True, purpose="creating an object"):
        create(store, name, b"first")
    try:
        with requests_to(path, is_start=True, purpose="reading an object"):
            content = read(store, name)
        with requests_to(path, is_start=True, purpose="creating an object again"):
            is_protected = create(store, name, b"second") is None
        with requests_to(path, is_start=True, purpose="listing the objects"):
            names = names_at_top(store)
    finally:
        with requests_to(path, is_start=True, purpose=f"deleting the object {name}"):
            store.delete(name)
    if not is_protected or content != b"first" or name not in names:
        raise ObjectStoreError(
            f"{path}: the object store creates an object again that exists, or does not show one"
            " that was created.",
            "Two processes could write the same epoch there. Use a store with conditional writes",
        )


def names_at_top(store: ObjectStore) -> list[str]:
    """Return the names of the objects and folders that lie directly in the output."""
    listed = store.list_with_delimiter()
    objects = [item["path"] for item in listed["objects"]]
    return [*objects, *(name.rstrip("/") for name in listed["common_prefixes"])]


class ObjectFiles:
    """A folder of small text files in an object store; see SmallFiles.

    Args:
        path: the output's URL.
        options: see open_object_store().
        folder: the folder's name; empty for the URL's own.
        store: opened; None to open it.
    """

    def __init__(
        self,
        path: str,
        options: Mapping[str, str],
        folder: str,
        store: ObjectStore | None = None,
    ) -> None:
        self._store = store or open_object_store(path, options)
        self._folder = folder
        self._prefix = f"{folder}/" if folder else ""
        self._path = path

    def names(self, after: str = "") -> list[str]:
        """Return the names of the files, in any order; see SmallFiles."""
        with requests_to(self._path):
            names = names_below(self._store, self._folder, after)
        return [name.removeprefix(self._prefix) for name in names]

    def read(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist."""
        with requests_to(self._path):
            content = read(self._store, f"{self._prefix}{name}")
        return None if content is None else content.decode()

    def read_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the texts of files, asked for at the same time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self.read, names))

    def create(self, name: str, text: str, *, is_durable: bool = False) -> str | None:  # noqa: ARG002
        """Create a file, which is durable in any case; see SmallFiles."""
        with requests_to(self._path):
            return create(self._store, f"{self._prefix}{name}", text.encode())

    def tag(self, name: str) -> str | None:
        """Return the tag of a file's content; see SmallFiles."""
        with requests_to(self._path):
            return etag(self._store, f"{self._prefix}{name}")

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:
        """Remove files, at the same time if the order does not matter; see SmallFiles."""
        removed = [f"{self._prefix}{name}" for name in names]
        with requests_to(self._path):
            if in_any_order:
                remove_together(self._store, removed)
            else:
                remove(self._store, removed)


def remove(store: ObjectStore, names: Iterable[str]) -> None:
    """Remove objects; one that does not exist is ignored."""
    for name in names:
        with suppress(FileNotFoundError):
            store.delete(name)


def remove_together(store: ObjectStore, names: Iterable[str]) -> None:
    """Remove objects at the same time, in any order; one that does not exist is ignored."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: remove(store, [name]), names))


def read_together(store: ObjectStore, names: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the contents of objects, in their order; as many as are asked for at a time wait."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            yield from pool.map(lambda name: read(store, name), some)


def download(store: ObjectStore, names: Sequence[str], folder: Path) -> list[Path]:
    """Copy objects to new files in a folder, and return these.

    Raises:
        FileNotFoundError: an object does not exist.
    """

    def copy(number: int) -> Path:
        target = folder / f"object-{number}"
        with target.open("xb") as out:
            # Large ones in parts.
            for part in store.get(names[number]):
                out.write(part)
        return target

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(copy, range(len(names))))


def _reason(error: Exception) -> str:
    """Return the message of an error, without the client's account of itself."""
    text = str(error).partition("\n\nDebug source:")[0]
    return re.sub(r"\s+", " ", text).strip().rstrip(".")
