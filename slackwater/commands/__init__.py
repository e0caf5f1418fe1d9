"""The commands of the command line, a module each, without parsing or printing.

- options: the flags and help texts; slackwater.cli has the commands themselves.
- run: runs pipelines.
- request: asks a running pipeline to pause, resume, drain or stop.
- stored_pipeline: opens the metadata store, and refuses a pipeline that it does not know.
- check: tests everything that a pipeline needs.
- status: looks up the answers of `status` and `partitions`.
- rescan: asks for tables to be read again.
- chosen_tables: the tables that a command's globs name.
- verify: compares mirrors with their tables.
- as_of: the versions of all mirrors at one time.
- sql_views: makes statements that rebuild tables from a changelog.
- jars, class_archive: make files with which Spark starts without a network, or faster.

How a pipeline runs is decided in slackwater.pipeline, not here.
"""
