"""The database around a change stream: its dialect, its options, its tables and their rows.

An epoch's records of a change stream do not come through here, but through reader.query.

- change_stream_info: decides whether a change stream can be read, and how long it retains records.
- watched_tables: the tables and columns that a change stream watches.
- schema_at: decides which tables and columns were dropped and made again in a span.
- schema_changes: decides by DDL statements which names belong to other tables and columns since.
- snapshot_read: decides how a row of a table, as it stood at a time, is written as a record.
"""
