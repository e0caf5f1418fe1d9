"""Iceberg tables that the driver commits to by pyiceberg, in any catalog, without a job of Spark's.

- table_place: which catalog a table is in, and how that is reached.
- folder_catalog: tables whose metadata files have numbers, on a disk or in an object store.
- store_io: how pyiceberg reads and writes files, with the client that writes everything else.
- owned_table: a table, and which process owns it.
- iceberg_commits: the commits of one table, as one process adds them.
- snapshots: what a table's snapshots say of the pipelines that committed them.
- columns: a table's columns and data files, in Arrow's words and in Iceberg's.
- file_rows, snapshot_rows: the rows of a data file, and those of a snapshot, read by tasks.
- rewrite: a snapshot in which files take the place of others, some rows of which may be gone.
- table_maintenance: compaction, and removal of old snapshots and files.
- iceberg_errors: what goes wrong, in our words.
"""
