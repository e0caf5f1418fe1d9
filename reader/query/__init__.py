"""Partition queries: opened, watched, retried, and their records handed on once each.

How a query's bytes are read is in reader.decode, how Spanner is called in reader.transport. Which
partitions are queried, and over which time, is for the scheduler to decide.

- partition_query: decides that a query is opened again, where it then starts, and when it is given
  up. Whether its end counts as the partition's end is explained in reader.query_outcome.
- batch_decoder: decides when the messages of many queries are decoded together.
- stall_watchdog: decides how long a query may be silent before it is opened again.
"""
