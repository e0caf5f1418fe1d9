"""The sinks, which write an epoch's DataFrame. Nothing here imports the reader or the store.

Packages, from the top: sinks decide where an epoch goes; tables, how it is committed to Delta or
Iceberg; output, how it is staged and made visible as files; avro, connect and envelopes, the form
of a message; filters and sql, which records and columns are written and how SQL expresses them.

- sink: the protocol that a pipeline calls.
- message_rows: an envelope's messages as rows of Spark.
- comparison: a mirror compared with its table.
- formats: file formats and the options without which they would lose something.
- modules: finds sinks, table formats and envelopes in their folders.
- java: the only way into the JVM.
- errors: the errors of sinks.
"""
