"""Spark's Python workers, forked with the clients that a task reads with already loaded.

Spark starts one daemon and forks the workers of it (spark.python.daemon.module). Without this each
worker loads Spanner's client for itself, some 0.6 s of CPU, and each task reads the directories of
archives again (worker_path). Nothing is connected before the fork, and what starts threads when it
is loaded, as pyarrow does, is left to the workers.

After each task Spark's worker collects garbage. To look through all that is loaded took longer than
a small epoch's task, 0.07 s of CPU. It is no garbage, and is left out.
"""

import gc
import sys
from collections.abc import Callable
from typing import Any

from slackwater.scheduler.spark.worker_path import remove_archives

remove_archives()

import google.cloud.spanner_v1  # noqa: E402, F401
import pyspark.daemon  # noqa: E402
import sqlalchemy  # noqa: E402, F401

from slackwater.log_lines import configure_worker  # noqa: E402


def leaving_out_what_is_loaded(run_task: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a task, after which no collection looks at the modules that it loaded."""
    modules = 0

    def run(*arguments: Any) -> Any:
        nonlocal modules
        try:
            return run_task(*arguments)
        finally:
            if len(sys.modules) != modules:
                gc.collect()
                gc.freeze()
                modules = len(sys.modules)

    return run


if __name__ == "__main__":
    configure_worker()
    pyspark.daemon.worker = leaving_out_what_is_loaded(pyspark.daemon.worker)
    gc.freeze()
    pyspark.daemon.manager()
