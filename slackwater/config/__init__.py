"""The settings, from a YAML file and the environment, checked as a whole.

- load: selects the file's pipelines, and merges the keys that they share.
- settings: the keys, their defaults and their conflicts. Two kinds of keys are defined in lower
  layers: those that the Spark source has, too, in scheduler.source_settings, and those of a sink in
  its module of spark_sink.sinks.
- json_schema: the schema by which editors complete and check the file.
- yaml_file: reads the file with its line numbers, and explains what is wrong with it.
- filters: decides which tables and columns a pipeline reads.
- sinks: makes the sink that the settings name.

Nothing here connects to anything or starts Spark.
"""
