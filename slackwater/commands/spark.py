"""Spark, as the settings of pipelines have it."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.pipeline.spark.session import start_spark


def spark_of(pipelines: Sequence[Settings]) -> SparkSession:
    """Start Spark for pipelines, of which the first has the settings for all.

    Raises:
        SettingsError, SparkFailedError: see start_spark().
    """
    spark = pipelines[0].spark
    return start_spark(
        [settings.pipeline for settings in pipelines],
        spark.master,
        spark.conf,
        {name for settings in pipelines for name in settings.sink.spark_needs},
        jars=spark.jars,
        class_archive=spark.class_archive,
    )
