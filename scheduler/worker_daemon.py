"""Spark's Python workers, forked with what a task reads with already loaded.

Spark starts one daemon and forks the workers of it (spark.python.daemon.module). Without this each
worker loads Spanner's client for itself, some 0.7 s of CPU. Nothing is connected before the fork.
"""

from __future__ import annotations

import pyspark.daemon

import scheduler.stream_reader  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
