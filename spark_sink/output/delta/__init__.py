"""The log of a Delta table, read and written here.

- snapshot: a table at a version, as a pure function over the actions of its log.
- actions: those that commits are made of.
- log_files: the files of a log, by their names; delta_log: reads them, and adds the next version if
  its number is free.
- features: the demands of tables on their readers and writers.
- rows: the rows of a table's files; deletion_vectors: the marks of deleted rows.
- owners: the numbers of a table's owners.
- delta_commits: the commits of a pipeline, as output.table_commits has them.
- compaction, expiry: many files become one, and old versions are removed.
"""
