"""How the driver merges a small epoch into mirrors: a job of Spark's would take longer than it.

- row_changes: what an epoch does to each row.
- small_epoch: the records of an epoch, and the rows that it changes in a table, in Arrow.
- delta_merge: into a Delta table, by delta-rs.
- iceberg_merge: into an Iceberg table, by Arrow and Iceberg's library; merged_rows: what becomes of
  its rows.
- corrections: what a rescan has to correct in a table, in Arrow, and what an epoch does after it.
- small_table: which tables are small enough.

What else they leave to Spark is decided in delta_merge and iceberg_merge.
"""
