"""Mirrors in a PostgreSQL database: an epoch is one transaction over all of them.

- address: the URL of a database, and the name of a table in it.
- database: statements and bulk copies, over a connection that is opened when it is needed.
- column_types: the types of columns, between Arrow and PostgreSQL.
- partitions: those of a typed changelog, by commit timestamp.
- row_merge: the merge of an epoch's rows into a mirror, as SQL.
- database_log: the owner, the low watermark, and the transaction of an epoch.
- postgresql_access: one mirror.
"""
