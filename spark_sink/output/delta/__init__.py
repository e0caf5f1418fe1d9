"""The log of a Delta table, read and written here.

- snapshot: what a table's log says of it at a version; a pure function over its actions.
- delta_log: reads the log, and adds the next version if its number is free.
- deletion_vectors: the marks of rows that are gone, beside the files.
- features: what tables may ask of who reads and writes them.
"""
