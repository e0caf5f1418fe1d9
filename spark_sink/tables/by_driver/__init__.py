"""Tables that Spark neither writes nor reads: tasks and the driver do.

- driver_access: creates, alters, appends to and merges into a managed table; delta_access and
  iceberg_access have the differences.
- delta_rows: the rows of a version of a Delta table, read by tasks; delta_history: its commits.
"""
