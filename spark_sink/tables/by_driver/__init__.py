"""Delta tables that Spark neither writes nor reads: tasks and the driver do.

- delta_access: how such a managed table is created, altered and appended to.
- delta_by_driver: the format of mirrors in S3.
- table_rows: the rows of a version, read by tasks.
"""
