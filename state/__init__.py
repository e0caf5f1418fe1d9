"""The metadata store: facts about pipelines and the operations on them, in any SQL database.

No rule of lineage or epochs is decided here, except what must happen in one transaction.

Which module decides what:
    models, rescan_models: the frozen records that go in and come out. tables: the schema.
    engine, spanner_dialect: how a database is opened. store: transactions, retries, pipelines.
    schema: whether a store may be used, and when it is upgraded, by `migrations`.
    transaction: the locks, facts and claims of a task's transaction.
    lineage_rows: partitions as rows.
    plans: an epoch's plans and their tasks. commit: the one way to commit an epoch; confirmation:
        what that confirms of partitions.
    lease: who owns a pipeline.
    epochs, gaps, scans, rescans, task_counts, task_metrics, open_queries: one table each.
"""
