"""The errors of Delta tables."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deltalake.exceptions import DeltaError

from slackwater.spark_sink.errors import ObjectStoreError, PublishError


@contextmanager
def delta_errors(path: str) -> Iterator[None]:
    """Turn the errors of delta-rs, of the store's client and of a disk into ours.

    A commit that failed may have been made: a retry finds its transaction identifier.

    Args:
        path: the table's, for messages.

    Raises:
        PublishError: the disk or the store refuses or fails.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (DeltaError, BaseError, OSError) as error:
        message = f"{path}: Delta's log failed: {error}."
        raise PublishError(message, "The epoch is read again") from error


def unsupported(path: str, features: Sequence[str]) -> ObjectStoreError:
    """Return the error of a table that is not read or written here.

    Args:
        path: the table's.
        features: those that prevent it.
    """
    return ObjectStoreError(
        f"{path} can't be read or written without Spark: it has {', '.join(features)}.",
        "Choose another path, or remove the feature from the table",
    )
