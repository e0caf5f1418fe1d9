"""The scheduler: it decides what is read in an epoch, in which order, and by which task.

Rules stand in pure modules; the metadata store and the source of records come in as arguments.
Nothing here knows sinks or settings files, and pyspark is imported in `spark` alone.

Which module decides what:
    epoch: the low watermark at which an epoch ends, and what lies in its cut.
    epoch_span: how long an epoch's span may be. epoch_lead: how far ahead of the clock it ends.
    lineage: what announces a partition, when it may start (`is_ready`), where its query starts and
        when it is finished; which are an epoch's roots, and which partitions may be pruned.
        lineage_planning carries that out for the planner.
    moves: the audit of moves of keys between partitions with mutable key ranges.
    plan: which task reads which roots.
    planner: whether another epoch begins (none while the pipeline is not to run), and that one in
        an accepted gap ends with it; otherwise it applies the rules above, epoch after epoch.
    start_position: where a new pipeline starts.
    audit: whether an epoch has the records that Spanner states for its transactions.
    change_source: the protocol of a source of records; spanner_source is Spanner's.
    batch_read: which cut a batch read has, and its slices.
    tasks: how a task reads its partitions. spark: how Spark drives all of it.
"""
