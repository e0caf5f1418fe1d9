"""What the commands of the command line do: a module for each, without parsing or printing.

- options: the flags and help texts; slackwater.cli has the commands themselves.
- run: runs pipelines; asks a running one to pause, resume, drain or stop.
- check: what a pipeline needs and whether it is there.
- status: `status` and `partitions`, from the metadata store.
- verify: whether mirrors equal their tables.
- sql_views: statements that rebuild tables from a changelog.
- jars, class_archive: what makes a start faster, or possible without a network.

How a pipeline runs is decided in slackwater.pipeline, not here.
"""
