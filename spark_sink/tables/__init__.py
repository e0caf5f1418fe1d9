"""Delta and Iceberg tables, to which an epoch is committed exactly once.

One table at a time: sinks decide which tables an epoch goes to. The types of columns are decided in
sql/types, where a Spanner NUMERIC becomes DECIMAL(38,9).

- table_changes: the changes to a table; table_format: the base class of a table format.
- registry: the table formats by name.
- delta, iceberg: the two formats.
- by_driver: tables of both formats, written and read by the driver and tasks.
- row_merges: the merge of an epoch into rows and files.
- managed_table: the common base of mirrors and typed changelogs, which adds columns.
- mirror_merge: the merge of rows into a mirror, as SQL of any database.
- mirror_table: a table kept equal to Spanner's; its merge and its low watermark.
- changelog_table: a table of all changes of one of Spanner's, and its columns.
- rescans: the correction of a mirror that differs from its table.
- table_history: the version at a low watermark; iceberg_history: the commits.
- cut: the versions of several tables at one low watermark.
"""
