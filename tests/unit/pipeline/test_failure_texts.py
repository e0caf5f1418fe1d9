"""The reason of a failure is its cause, in whatever texts of Spark, Java and Python it comes."""

import pytest

from slackwater.pipeline.disks import Disk, advice, disks_of
from slackwater.pipeline.failures import summary

FULL = "OSError: [Errno 28] No space left on device: '/data/x'"
IN_CALLBACK = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most \
recent call last):
  File "/p/clientserver.py", line 642, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/p/writer.py", line 105, in write
    raise encoded(error) from None
{FULL}
 SQLSTATE: 39000
=== Streaming Query ===
Current State: ACTIVE

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 1]
\tat org.apache.spark.sql.X.run(X.scala:350)
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "/p/clientserver.py", line 642, in _call_proxy
{FULL}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""
IN_WORKER = """An error occurred while calling o62.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 3.0 (TID 9) (h executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/p/worker.py", line 1, in main
ValueError: no such thing

\tat org.apache.spark.api.python.X.read(X.scala:1)
Driver stacktrace:
\tat org.apache.spark.Y.z(Y.scala:2)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/p/worker.py", line 1, in main
ValueError: no such thing

\tat org.apache.spark.api.python.X.read(X.scala:1)
"""
IN_JAVA = """An error occurred while calling o62.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows
\tat org.apache.spark.X.y(X.scala:1)
Caused by: java.io.IOException: No space left on device
\tat sun.nio.ch.FileDispatcherImpl.write0(Native Method)
\t... 3 more
"""
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure:"
    " Lost task 0.3 (TID 3) (10.0.0.1 executor 1): ExecutorLostFailure (executor 1 exited caused by"
    " one of the running tasks) Reason: Command exited with code 137\nDriver stacktrace:"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (IN_CALLBACK, FULL),
        (IN_WORKER, "ValueError: no such thing"),
        (IN_JAVA, "java.io.IOException: No space left on device"),
        (LOST, "Command exited with code 137"),
        ("[Errno 2] nothing there", "[Errno 2] nothing there"),
        ("", "no message"),
    ],
)
def test_the_cause_is_in_the_one_line_that_is_shown(text: str, cause: str) -> None:
    line = summary(text)
    assert cause in line
    assert "\n" not in line
    assert "Traceback" not in line.partition("(")[2]


DISKS = [
    Disk("sink.path", "/data/out", 0, is_read_only=False),
    Disk("sink.checkpoint", "/fast/checkpoint", 1 << 30, is_read_only=False),
    Disk("state.url", "/state/state.db", 1 << 30, is_read_only=True),
]


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (FULL, "The disk of sink.path /data/out has 0 MiB left"),
        ("(sqlite3.OperationalError) database or disk is full", "sink.path /data/out"),
        ("java.io.IOException: Read-only file system", "state.url /state/state.db is read-only"),
        ("attempt to write a readonly database", "state.url /state/state.db is read-only"),
        # Hadoop keeps the reason to itself.
        ("Mkdirs failed to create file:/data/out/x", "sink.path /data/out has 0 MiB left"),
        ("Mkdirs failed to create file:/state/x", "state.url /state/state.db is read-only"),
        ("the broker did not answer", ""),
    ],
)
def test_a_disk_that_is_full_or_read_only_is_named(error: str, advised: str) -> None:
    text = advice(error, DISKS)
    assert advised in text
    assert bool(advised) == bool(text)
    assert "checkpoint" not in text


def test_only_places_on_this_machine_have_a_disk(tmp_path: object) -> None:
    places = {"a": f"{tmp_path}/not/yet", "b": "s3://bucket/x", "c": f"file://{tmp_path}/x"}
    assert [disk.setting for disk in disks_of(places)] == ["a", "c"]
