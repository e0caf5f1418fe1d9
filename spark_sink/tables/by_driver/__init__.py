"""Delta tables that Spark neither writes nor reads: tasks and the driver do.

- delta_access: how such a managed table is created, altered and appended to.
- table_rows: the rows of a version, read by tasks.
"""
