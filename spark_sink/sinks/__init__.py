"""The kinds of sinks, one module each: settings, class, jars and Spark settings, check.

They decide the destination of an epoch and the order of its steps. The writing of a table or a
directory is decided in tables and output. A new kind is a new module: registry finds it, and no
other code lists the kinds. Loading the settings imports all of them: a module imports Spark where
it uses it, not at its top.

- sink_settings: the settings that kinds share, and their methods for a pipeline; envelope_settings
  and table_settings those of some of them.
- registry: finds the kinds, and parses a section sink as the settings of its kind.
- changelog, typed_changelogs, mirrors, kafka, spark_format: the kinds.
- mirror_epoch, former_rows: one epoch as it is merged into mirrors, and rows of tables that were
  dropped and made again.
- managed_tables: the common base of mirrors and typed changelogs.
"""
