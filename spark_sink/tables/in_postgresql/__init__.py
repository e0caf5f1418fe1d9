"""Tables in a PostgreSQL database; see by_transaction.

- address: the URL of a database.
- database: statements and bulk copies, over a connection that is opened when it is needed.
- column_types: the types of columns, between Arrow and PostgreSQL.
- partitions: those of a typed changelog, by commit timestamp.
- postgresql_log: the log of all tables.
- postgresql_access: one table.
"""
