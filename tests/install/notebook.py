"""A notebook as a script: it reads changes and imports nothing but PySpark.

Usage: notebook.py PROJECT INSTANCE DATABASE CHANGE_STREAM START ROWS. It prints one JSON line: the
number of rows that it read, and where the modules came from.
"""

import json
import sys
import time
from importlib.util import find_spec

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
limit = time.monotonic() + 120
while spark.table("changes").count() < int(rows) and query.isActive:
    if time.monotonic() > limit:
        raise SystemExit("the rows did not come within two minutes")
    time.sleep(1)
if (error := query.exception()) is not None:
    raise SystemExit(str(error))
read = spark.table("changes").count()
query.stop()
spark.stop()


def place(name: str) -> str | None:
    """The file that an import of this name would load, None where there is no such module."""
    spec = find_spec(name)
    return None if spec is None else str(spec.origin)


names = ("slackwater", "pyspark_slackwater", "reader", "state", "scheduler", "spark_sink")
print(json.dumps({"rows": read, "modules": {name: place(name) for name in names}}))
