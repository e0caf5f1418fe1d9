"""Iceberg tables that the driver commits to by pyiceberg, in any catalog, without a job of Spark's.

- table_place: the catalog that a table is in, and its connection.
- folder_catalog: tables whose metadata files have numbers, on a disk or in an object store.
- store_io: how pyiceberg reads and writes files, with the client that writes everything else.
- owned_table: a table, and which process owns it.
- iceberg_commits: the commits of one table, as one process adds them.
- snapshots: the pipelines in the summaries of a table's snapshots.
- columns: a table's columns and data files, converted between Arrow and Iceberg.
- file_rows, snapshot_rows: the rows of a data file, and those of a snapshot, read by tasks.
- rewrite: a snapshot in which files replace others, of which some rows may be deleted.
- table_maintenance: compaction, and removal of old snapshots and files.
- iceberg_errors: the errors of pyiceberg as those of the sinks.
"""
