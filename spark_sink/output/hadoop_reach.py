"""The check that Hadoop's connector reaches an object store, before a pipeline relies on it.

With their own settings connectors try for minutes, and then fail with a Java stack trace.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import FileSystemError, PublishError
from slackwater.spark_sink.java import hadoop_conf, java_exception, java_raised, jvm_of
from slackwater.spark_sink.output.hadoop_connectors import connectors_for

# Some seconds of trying, for this question only.
_IMPATIENT: Final = {
    "fs.gs.http.max.retry": "2",
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "2",
    "fs.azure.io.retry.max.retries": "2",
}
# In the names of Java's exceptions.
_UNREACHED: Final = ("ConnectException", "UnknownHost", "NoRouteToHost", "Timeout", "SSL")
_MISSING: Final = ("UnknownStore", "NoSuchBucket")
_CAUSES_MAX: Final = 20


def require_reachable(spark: SparkSession, paths: Iterable[str]) -> None:
    """Ask object stores for folders, which need not exist, by Hadoop's connectors.

    Args:
        spark: a session with the connectors.
        paths: paths or URLs that Spark is to use; those that need no connector are skipped.

    Raises:
        FileSystemError: there is no such bucket, or the store or the connector refuses.
        PublishError: the store does not answer.
    """
    by_bucket: dict[str, list[str]] = {}
    for path in paths:
        if connectors_for([path]):
            url = urlsplit(path)
            by_bucket.setdefault(f"{url.scheme}://{url.netloc}/", []).append(path)
    for bucket, folders in by_bucket.items():
        _require_bucket(spark, bucket, folders)


def _require_bucket(spark: SparkSession, bucket: str, folders: Sequence[str]) -> None:
    hadoop = jvm_of(spark).org.apache.hadoop
    conf = hadoop.conf.Configuration(hadoop_conf(spark))
    for name, value in _IMPATIENT.items():
        conf.set(name, value)
    root = hadoop.fs.Path(bucket)
    with _translating(folders[0]):
        files = hadoop.fs.FileSystem.newInstance(root.toUri(), conf)
    try:
        for folder in folders:
            with _translating(folder):
                # Cloud Storage and Azure answer this without a bucket, too.
                files.exists(hadoop.fs.Path(folder))
        if not _may_exist(files, root):
            raise _no_bucket(folders[0], "it was not found")
    finally:
        files.close()


def _may_exist(files: Any, bucket: Any) -> bool:
    """Return False if there is no such bucket; the right to see buckets may be missing."""
    try:
        return bool(files.exists(bucket))
    except java_raised() as error:
        return not any(part in name for name, _ in _causes(error) for part in _MISSING)


@contextmanager
def _translating(path: str) -> Iterator[None]:
    try:
        yield
    except java_raised() as error:
        causes = list(_causes(error))
        reason = causes[-1][1].partition("\n")[0].rstrip(".")
        if any(part in name for name, _ in causes for part in _MISSING):
            raise _no_bucket(path, reason) from error
        if any(part in name for name, _ in causes for part in _UNREACHED):
            raise PublishError(
                f"{path}: the object store does not answer: {reason}.",
                "Check the network, and the store's address if spark.conf names one",
            ) from error
        raise FileSystemError(
            f"{path}: Spark can't open it: {reason}.",
            "Look at the bucket's name, the credentials in the environment, spark.conf, and at"
            " the rights: the pipeline lists, reads, writes and deletes objects there",
        ) from error


def _no_bucket(path: str, reason: str) -> FileSystemError:
    return FileSystemError(
        f"{path}: the bucket or container does not exist: {reason}.",
        "Correct its name, or create it: Spark creates folders only",
    )


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """Yield the class and the message of a Java exception, and of those that caused it."""
    exception = java_exception(error)
    for _ in range(_CAUSES_MAX):
        if exception is None:
            return
        name = str(exception.getClass().getName())
        yield name, str(exception.getMessage() or name)
        exception = exception.getCause()
