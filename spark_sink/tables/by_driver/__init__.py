"""Tables that Spark neither writes nor reads: tasks and the driver do.

- driver_access: how a managed table is created, altered, appended to and merged into; delta_access
  and iceberg_access say what differs.
- delta_version, iceberg_version: the files of a version that an epoch is merged into.
- delta_rows: the rows of a version of a Delta table, read by tasks; delta_history: its commits.
- large_epochs: what Spark has folded of an epoch that is too large for the driver alone.
"""
