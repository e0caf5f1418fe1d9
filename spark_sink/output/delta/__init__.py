"""The log of a Delta table, read and written here.

- snapshot: what a table's log says of it at a version; a pure function over its actions.
- actions: those that commits are made of.
- log_files: the files of a log, by their names; delta_log: reads them, and adds the next version if
  its number is free.
- features: what tables may ask of who reads and writes them.
- rows: the rows of a table's files; deletion_vectors: the marks of those that are gone.
- owners: who owns a table.
- delta_commits: the commits of a pipeline, as output.table_commits has them.
- compaction, expiry: many files become one, and old versions go.
"""
