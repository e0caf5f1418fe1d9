"""A notebook as a script: it reads changes and imports nothing but PySpark.

Usage: notebook.py PROJECT INSTANCE DATABASE CHANGE_STREAM START ROWS. It prints the
number of rows that it read.
"""

import sys
import time

from pyspark.sql import SparkSession

project, instance, database, change_stream, start, rows = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
changes = (
    spark.readStream.format("spanner_changes")
    .option("project", project)
    .option("instance", instance)
    .option("database", database)
    .option("change_stream", change_stream)
    .option("start", start)
    .load()
)
query = changes.writeStream.format("memory").queryName("changes").start()
limit = time.monotonic() + 240
while spark.table("changes").count() < int(rows) and query.isActive:
    if time.monotonic() > limit:
        raise SystemExit("the rows did not come within four minutes")
    time.sleep(1)
if (error := query.exception()) is not None:
    raise SystemExit(str(error))
read = spark.table("changes").count()
query.stop()
spark.stop()
print(read)
