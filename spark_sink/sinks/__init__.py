"""The kinds of sinks, one module each: settings, class, jars and Spark settings, check.

Which destination an epoch goes to and in which order it gets there. How a table or a directory is
written is decided in tables and output. A new kind is a new module: registry finds it, and no other
code lists the kinds.
Loading the settings imports all of them: a module imports Spark where it uses it, not at its top.

- sink_settings: the settings that kinds share, and what a pipeline asks of them; envelope_settings
  and table_settings those of some of them.
- registry: finds the kinds; which kind's settings a section sink has, and which keys go with which.
- changelog, typed_changelogs, mirrors, kafka, spark_format: the kinds.
- mirror_epoch, former_rows: one epoch as it is merged into mirrors, and what it says of tables that
  were dropped and made again.
- managed_tables: what mirrors and typed changelogs share.
"""
