"""A task of a plan: partition queries in, Arrow batches out, without Spark.

Which module decides what:
    task: runs the queries of one task at the same time, and yields their records.
    partition_reader: reads one partition through the epoch or to its end, and from earlier on if no
        query has shown its end.
    cut_filter: decides which records of a query are delivered, and passes them to the audit.
    task_attempt: records facts about partitions, and claims those that may start; decides
        which ends an attempt may record once the task is sealed.
    threads: starts threads and waits for them; a simulation has another implementation.
    byte_queue: bounds how much may wait between the queries and Spark.
    metrics_collector, open_query_reporter: a task's reports about its own work.
"""
