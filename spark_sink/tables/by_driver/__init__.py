"""Tables that Spark neither writes nor reads: tasks and the driver do.

- driver_access: how a managed table is created, altered and appended to; delta_access and
  iceberg_access say what differs, accesses which it is.
- delta_by_driver: the format of tables in object stores.
- table_rows: the rows of a version of a Delta table, read by tasks.
- large_epochs: what Spark has folded of an epoch that is too large for the driver alone.
"""
