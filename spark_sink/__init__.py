"""The sinks: where an epoch's DataFrame goes. Nothing here imports the reader or the store.

Packages, from the top: sinks decide where an epoch goes; tables, how it lands in Delta or Iceberg;
output, how it is staged and made visible as files; avro and envelopes, what a message looks like;
filters and sql, which records and columns are written and how SQL expresses them.

- sink: the protocol that a pipeline calls.
- message_rows: an envelope's messages as rows of Spark.
- comparison: whether a mirror equals its table.
- formats: file formats and the options without which they would lose something.
- modules: how sinks, table formats and envelopes are found in their folders.
- java: the only way into the JVM.
- errors: what a sink raises.
"""
