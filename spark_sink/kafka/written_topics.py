"""The topics that a pipeline has written to: only they get its resolved messages.

A topic's name does not show whose it is: a cluster has topics of others, and the setting
`topic: "{table}"` could mean any of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import hadoop_conf, jvm_of
from slackwater.spark_sink.kafka.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = "_topics"
_SUFFIX: Final = ".topic"


class WrittenTopics:
    """The names of the topics, each as an empty file, because no process may forget one.

    Args:
        path: the sink's directory, a path or URL that Spark accepts.
    """

    def __init__(self, path: str) -> None:
        self._path = f"{path}/{FOLDER}"
        self._known_names: set[str] = set()
        self._known_tables: set[str] = set()

    def add(self, spark: SparkSession, names: Collection[str]) -> None:
        """Add topics that messages were sent to; those that are known cost nothing."""
        for name in sorted(set(names) - self._known_names):
            self._files(spark).create(self._file(spark, f"{name}{_SUFFIX}"), True).close()
            self._known_names.add(name)

    def require_own(self, spark: SparkSession, topics: Topics, tables: Collection[str]) -> None:
        """Refuse tables new to this process whose topics others have; see Topics.

        Raises:
            TableNameError: there is one.
        """
        if not self._known_tables.issuperset(tables):
            topics.require_own({*tables, *self._known_tables}, self.names(spark))
            self._known_tables.update(tables)

    def names(self, spark: SparkSession) -> frozenset[str]:
        """Return the names of all topics that were added, by whichever process."""
        files, folder = self._files(spark), self._file(spark, "")
        statuses = files.listStatus(folder) if files.exists(folder) else ()
        file_names = [str(status.getPath().getName()) for status in statuses]
        return frozenset(n.removesuffix(_SUFFIX) for n in file_names if n.endswith(_SUFFIX))

    def _files(self, spark: SparkSession) -> Any:
        return self._file(spark, "").getFileSystem(hadoop_conf(spark))

    def _file(self, spark: SparkSession, name: str) -> Any:
        return jvm_of(spark).org.apache.hadoop.fs.Path(f"{self._path}/{name}")
