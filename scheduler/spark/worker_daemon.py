"""Spark's Python workers, forked with the clients that a task reads with already loaded.

Spark starts one daemon and forks the workers of it (spark.python.daemon.module). Without this each
worker loads Spanner's client for itself, some 0.6 s of CPU. Nothing is connected before the fork,
and what starts threads when it is loaded, as pyarrow does, is left to the workers.
"""

from __future__ import annotations

import google.cloud.spanner_v1  # noqa: F401
import pyspark.daemon
import sqlalchemy  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
