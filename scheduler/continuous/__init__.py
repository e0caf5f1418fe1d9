"""Continuous reading: partition queries that stay open over epochs, in a process of their own.

The service otherwise asks each partition once an epoch. Here a process beside the Python workers of
each executor, the reader process, keeps a query of each partition open and holds its records. Tasks
take an epoch's part of them.

It is a cache, and correctness does not depend on it. If it lacks records, because the process has
just begun, a query broke or memory ran out, the task reads them with a query of its own. Records
from the cache pass the same filter and the same audit.

followed_partition holds the records of one query, follower the queries of one change stream,
reader_process is the process, reader_client its client, and continuous_queries the source that a
task sees.
"""
