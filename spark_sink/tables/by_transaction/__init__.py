"""Tables in a database that has transactions over all of them: PostgreSQL, and DuckLake.

- names: those of tables, in SQL.
- sql_database: statements and transactions.
- row_merge: the merge of an epoch's rows into a mirror, as SQL.
- transaction_log: the owner, the low watermark, and the transaction of an epoch.
- transaction_access: one table.
"""
