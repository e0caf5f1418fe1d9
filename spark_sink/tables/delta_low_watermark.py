"""The low watermark in a Delta table's properties, set by Spark where the driver can't commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.spark_sink.java import java_session, jvm_of
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY, MergeId
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish_by_spark(spark: SparkSession, path: str, merge_id: MergeId) -> None:
    """Write to a table's properties up to when it has all changes; see TableFormat.

    ALTER TABLE would be committed after the merge of a later epoch, too. A transaction that has
    looked at a transaction identifier conflicts with a commit that changes it.

    Args:
        spark: a session with Delta's jar.
        path: the table's path or URL.
        merge_id: identifies the epoch.

    Raises:
        Py4JJavaError: an epoch was merged, or the properties were changed, at the same time.
    """
    jvm = jvm_of(spark)
    delta, nothing = jvm.org.apache.spark.sql.delta, jvm.scala.Option.empty()
    log = delta.DeltaLog.forTable(java_session(spark), path)
    transaction = log.startTransaction(nothing, nothing)
    # Not by the snapshot, of which the transaction does not know what was looked at.
    merged = int(transaction.txnVersion(merge_id.application))
    metadata = transaction.metadata()
    stated = metadata.configuration().get(LOW_WATERMARK_PROPERTY)
    published = str(stated.get()) if stated.isDefined() else None
    if not merge_id.may_be_published(published, None if merged < 0 else merged):
        return
    property_of_epoch = LOW_WATERMARK_PROPERTY, datetime_to_rfc3339(merge_id.low_watermark)
    changed = metadata.copy(
        metadata.id(),
        metadata.name(),
        metadata.description(),
        metadata.format(),
        metadata.schemaString(),
        metadata.partitionColumns(),
        metadata.configuration().updated(*property_of_epoch),
        metadata.createdTime(),
    )
    transaction.updateMetadata(changed, False)
    properties = jvm.scala.Predef.Map().empty().updated(*property_of_epoch)
    operation = getattr(delta, "DeltaOperations$SetTableProperties")(properties)
    no_actions = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList())
    transaction.commit(no_actions.toSeq(), operation)
