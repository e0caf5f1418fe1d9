"""Registers the Spark source of Bigtable's changes, as pyspark_slackwater does Spanner's."""

from slackwater.scheduler.spark.bigtable_data_source import BigtableChangesDataSource


class DefaultSource(BigtableChangesDataSource):
    """The source under the name that Spark looks for."""
