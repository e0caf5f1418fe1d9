"""Tables in a DuckLake, whose catalog is a database; see by_transaction.

- address: the catalog and the files.
- lake: statements, over DuckDB in this process.
- ducklake_log: the log of all tables.
- ducklake_access: one table.
"""
