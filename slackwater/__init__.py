"""Slackwater delivers the changes of a Cloud Spanner database, each once, in consistent epochs.

Reading change streams, keeping state and writing tables are packages of their own, linked into this
one: reader, state, scheduler and spark_sink. The packages here make a program of them. Imports run
down this list only:

- cli: the command line; parses, prints, decides the exit code.
- commands: the commands. demo: the demonstration on the emulator.
- testing: for the demo and the tests: emulator, plain client, comparison.
- monitoring: HTTP, metrics, traces, logs, the page, the live view.
- tail: changes to a terminal, without Spark.
- pipeline: the life of a pipeline: its owner, its query, failures, recovery.
- config: settings, from YAML and the environment.
- errors: the errors of all of these.
"""
