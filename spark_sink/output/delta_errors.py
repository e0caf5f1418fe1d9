"""The errors of delta-rs, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from slackwater.spark_sink.errors import ObjectStoreError, PublishError, commit_conflict

# In what delta-rs says of a table that it can't write, one with features that it does not know too.
_UNSUPPORTED: Final = ("Unsupported", "append-only", "appendOnly")


class DeltaUnsupportedError(Exception):
    """The driver can't change this table, and Spark has to; the message says why."""


@contextmanager
def delta_errors(
    path: str,
    failed: str = "Delta's log failed",
    *,
    hint: str = "The epoch is read again",
    is_for_spark: bool = False,
) -> Iterator[None]:
    """Turn the errors of delta-rs, and of the store's client, into ours.

    A commit that failed for another reason than a conflict may have been made: who tries again, by
    another way too, finds its transaction identifier.

    Args:
        path: the table's, for messages.
        failed: what it is if it fails, likewise.
        hint: what happens then.
        is_for_spark: whatever fails, but for a conflict, Spark may be able to do.

    Raises:
        DeltaUnsupportedError: delta-rs can't write the table.
        PublishError: another process has committed, or the disk or the store refuses or fails.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError
    from obstore.exceptions import BaseError

    try:
        yield
    except (DeltaError, BaseError, OSError) as error:
        if any(word in str(error) for word in _UNSUPPORTED):
            raise DeltaUnsupportedError(str(error)) from error
        if isinstance(error, CommitFailedError):
            raise commit_conflict(path) from error
        if is_for_spark:
            raise DeltaUnsupportedError(str(error)) from error
        raise PublishError(f"{path}: {failed}: {error}.", hint) from error


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Turn what delta-rs can't do into an error, where Spark is not to do it.

    Args:
        path: the table's, for messages.

    Raises:
        ObjectStoreError: it can't.
    """
    try:
        yield
    except DeltaUnsupportedError as error:
        raise ObjectStoreError(
            f"{path} can't be read or written without Spark: {error}.",
            "Choose another path, or remove the feature from the table",
        ) from error
