"""The errors of pyiceberg and of a catalog's client as those of the sinks."""

from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NotInstalledError,
    TableAlreadyExistsError,
)
from sqlalchemy.exc import SQLAlchemyError

from slackwater.spark_sink.errors import ObjectStoreError, PublishError, SinkError, commit_conflict


@contextmanager
def iceberg_errors(path: str) -> Iterator[None]:
    """Turn the errors of pyiceberg, of its catalog and of the store's client into ours.

    A commit that failed for another reason than a conflict may have been made: a retry finds its
    version in the table.

    Args:
        path: the table's, for messages.

    Raises:
        ObjectStoreError: the catalog lacks the namespace, or something has to be installed.
        PublishError: another process has committed, or the disk, the store or the catalog refuses
            or fails.
    """
    try:
        yield
    except SinkError:
        raise
    except (CommitFailedException, TableAlreadyExistsError) as error:
        raise commit_conflict(path) from error
    except NoSuchNamespaceError as error:
        raise ObjectStoreError(
            f"{path}: the catalog has no such namespace.", "Create it, and start again"
        ) from error
    except (NotInstalledError, ModuleNotFoundError) as error:
        raise ObjectStoreError(
            f"{path}: pyiceberg can't reach this kind of catalog: {error}.",
            "Install what it names, or use a REST catalog",
        ) from error
    except Exception as error:
        of_clients = (BaseError, OSError, SQLAlchemyError)
        if not isinstance(error, of_clients) and not _is_of_iceberg(error):
            raise
        raise PublishError(
            f"{path}: Iceberg's commit failed: {error}.", "The epoch is read again"
        ) from error


def _is_of_iceberg(error: Exception) -> bool:
    """Return whether an error is one of pyiceberg's, which have no class in common."""
    return type(error).__module__ == "pyiceberg.exceptions"
