"""The Spark source; nothing else in scheduler imports pyspark.

data_source is the format that users read. stream_reader is its planning and reading in a stream: it
calls the Planner and read_task, and decides nothing itself. batch_reader is that of spark.read.
scan_source reads the parts of an initial scan. worker_daemon makes Spark's Python workers start
faster. Errors of ours leave Spark's Python processes through slackwater.worker_errors.
"""
