"""Delta and Iceberg tables, and how an epoch lands in one exactly once.

One table at a time: which tables an epoch goes to is decided in sinks. The types of columns are
decided in sql/types, where a Spanner NUMERIC becomes DECIMAL(38,9).

- table_changes: what is done to a table; table_format: the base class of a table format.
- registry: which table formats there are, by name.
- delta, iceberg: the two formats.
- by_driver: how the driver and tasks write and read tables of both.
- row_merges: what an epoch does to rows and files.
- managed_table: what mirrors and typed changelogs share; when columns are added.
- mirror_table: a table kept equal to Spanner's; its merge and its low watermark.
- changelog_table: a table of all changes of one of Spanner's; which columns it has.
- rescans: how a mirror is made equal to its table again.
- table_history: which version stands at a low watermark; iceberg_history: the commits.
- cut: the versions of several tables at one low watermark.
"""
