"""The partitions in the metadata store, printed: `slackwater partitions`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from slackwater.commands.options import PartitionFormat
from slackwater.commands.partition_table import partition_table
from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.monitoring.json_fields import partition_fields
from slackwater.monitoring.lineage_graph import to_dot
from slackwater.scheduler.lineage import states
from slackwater.state.open_queries import stalls


def partition_lines(settings: Settings, partition_format: PartitionFormat) -> Iterator[str]:
    """Yield the lines of a table, of JSON or of a graph in Graphviz's language.

    Raises:
        PipelineNotStartedError: the pipeline has never run.
        StateError: the store can't be read.
    """
    store, pipeline = open_pipeline(settings)
    try:
        partitions = store.partitions(settings.pipeline)
        stalled = stalls(store, settings.pipeline)
    finally:
        store.close()
    if partition_format is PartitionFormat.DOT:
        yield from to_dot(partitions, low_watermark_ns=pipeline.low_watermark_ns).splitlines()
        return
    state_of = states(partitions, pipeline.low_watermark_ns or 0)
    rows = [partition_fields(p, state_of[p.label], stalled.get(p.label, 0)) for p in partitions]
    if partition_format is PartitionFormat.JSON:
        yield json.dumps(rows, indent=2)
        return
    yield from partition_table(rows)
