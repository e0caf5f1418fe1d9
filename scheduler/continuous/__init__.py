"""Continuous reading: partition queries that stay open over epochs, in a process of their own.

The service otherwise asks each partition once an epoch. Here a process beside the Python workers of
each executor, the reader process, keeps a query of each partition open and holds what it has
brought. Tasks take an epoch's part of it.

It is a cache, and nothing about correctness rests on it. What a task does not get from it, because
the process has just begun, a query broke or memory ran out, the task reads with a query of its own,
as without the reader process. What it does get passes the same filter and the same audit.

followed_partition holds what one query has brought, follower the queries of one change stream,
reader_process is the process, reader_client asks it, and continuous_queries is the source that a
task sees.
"""
