"""Registers the Spark source with Spark automatically.

Spark looks through the modules whose names start with "pyspark_" for a DefaultSource, so that
spark.readStream.format("spanner_changes") works in any notebook without registering it.
"""

from slackwater.scheduler.spark.data_source import SpannerChangesDataSource


class DefaultSource(SpannerChangesDataSource):
    """The source under the name that Spark looks for."""
