"""Reading one Cloud Spanner change stream: from a partition token to rows of Apache Arrow.

Here live the queries of a change stream, their decoding and their errors. The reader knows
neither epochs nor Spark nor the metadata store: it reads the partitions that it is asked for, over
the time that it is asked for, and the scheduler decides which these are.

Which module decides what:

- query_outcome: whether a query's end is its partition's end (Finished), the end of the query's
  time only (Alive), or shows nothing (Inconclusive); and what Spanner's OUT_OF_RANGE means.
- partition_progress: where a broken query resumes, and which records have come before.
- query_window: how much time one query may cover, with mutable key ranges.
- schema: the output's columns, and their types in Arrow and in Spark's DDL.
- records: the change records as Python sees them.
- errors: what can go wrong, and whether the user or the world is at fault.
- change_stream: which names and request options a change stream can have.
- decode: how Spanner's messages become change records and Arrow batches. A column's value stays
  JSON text here, as Spanner wrote it: no type, NUMERIC or any other, is converted. Typed columns
  are decided by slackwater.spark_sink.sql.types, values of messages by
  slackwater.spark_sink.envelopes.values and slackwater.spark_sink.avro.types.
- query: when a query is opened again, and when many are decoded together.
- transport: how Spanner is called, which of its errors are worth another try, and what the others
  mean for the user.
- database: the information schema, and snapshots of tables.

Imports point down: database, query, transport, decode, and then the modules of this folder.
"""
