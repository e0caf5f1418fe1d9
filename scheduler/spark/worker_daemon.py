"""Spark's Python workers, forked with the clients that a task reads with already loaded.

Spark starts one daemon and forks the workers of it (spark.python.daemon.module). Without this each
worker loads Spanner's client for itself, some 0.6 s of CPU, and each task reads the directories of
archives again (worker_path). Nothing is connected before the fork, and what starts threads when it
is loaded, as pyarrow does, is left to the workers.
"""

from __future__ import annotations

from slackwater.scheduler.spark.worker_path import remove_archives

remove_archives()

import google.cloud.spanner_v1  # noqa: E402, F401
import pyspark.daemon  # noqa: E402
import sqlalchemy  # noqa: E402, F401

from slackwater.log_lines import configure_worker  # noqa: E402

if __name__ == "__main__":
    configure_worker()
    pyspark.daemon.manager()
