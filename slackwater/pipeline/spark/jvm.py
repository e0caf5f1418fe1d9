"""Calls into Spark's JVM that PySpark has no public name for: py4j is used here only.

Names with an underscore are PySpark's own and may change with its version, and py4j has no types.
So all code that reaches behind the public interface is in this module, and its functions take and
return plain Python values.
"""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from tempfile import NamedTemporaryFile
from typing import Any, Final
from urllib.parse import urlparse

from py4j.java_gateway import JavaGateway, JavaObject
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater.errors import SparkFailedError
from slackwater.pipeline.failures import summary
from slackwater.pipeline.spark.launch_output import without_ivys_lines
from slackwater.scheduler.spark import at_start
from slackwater.spark_sink.java import hadoop_conf, jvm_of

# What a call to Spark raises that fails, or whose JVM has ended.
FAILED_CALL: Final = (PySparkException, Py4JError, OSError)
# Options of spark-submit, by PySpark's name.
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
# Where the driver's Python processes look for modules.
_PYTHON: Final = "PYTHONPATH"
# The prefix of this program's own variables, which neither the JVM nor the workers need.
_OWN: Final = "SLACKWATER_"
# The numbers of a stage that change while its tasks work.
_COUNTS: Final = (
    "stageId",
    "attemptId",
    "numCompleteTasks",
    "inputRecords",
    "outputRecords",
    "shuffleReadRecords",
    "shuffleWriteRecords",
)
# A class archive is written at the end.
_END_SECONDS_MAX: Final = 120


def launch(conf: SparkConf) -> JavaGateway:
    """Start a JVM in a session of its own in the operating system's sense.

    A Ctrl-C in the terminal is to reach this program, which drains, and not the JVM and its Python
    workers. Its settings are in a file of this user's alone, because every user sees arguments, and
    those of this program are not in its environment.

    Raises:
        PySparkRuntimeError: the JVM did not start.
    """
    with without_ivys_lines() as output, _submitting(conf):
        options = {"start_new_session": True, "stderr": output}
        gateway = launch_gateway(popen_kwargs=options)
    _require_token(gateway)
    return gateway


@contextmanager
def _submitting(conf: SparkConf) -> Iterator[None]:
    """Have Spark's launcher read settings from a file, and Python start with at_start's module.

    Both hold as long as the context is open.
    """
    hidden = [name for name in os.environ if name.startswith(_OWN)]
    hidden_values = {
        name: os.environ.pop(name) for name in [_SUBMIT, _PYTHON, *hidden] if name in os.environ
    }
    places = [str(Path(at_start.__file__).parent), hidden_values.get(_PYTHON, "")]
    os.environ[_PYTHON] = os.pathsep.join(filter(None, places))
    with NamedTemporaryFile("w", encoding="utf-8", prefix="slackwater-", suffix=".conf") as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.getAll())
        file.flush()
        rest = hidden_values.get(_SUBMIT, "pyspark-shell")
        os.environ[_SUBMIT] = f"--properties-file {quote(file.name)} --load-spark-defaults {rest}"
        try:
            yield
        finally:
            del os.environ[_SUBMIT], os.environ[_PYTHON]
            os.environ.update(hidden_values)


def _escaped(text: str) -> str:
    """Return a name or a value in the form of a Java properties file."""
    return re.sub(r"[\\:=#!\s]", lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _require_token(gateway: Any) -> None:
    """Require of the JVM's calls into this process the token that calls into the JVM have.

    PySpark starts the server for them without one, and py4j's client loses its token when it
    learns the server's port.
    """
    token = gateway.gateway_parameters.auth_token
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    of_client = getattr(gateway.jvm.java.lang, "Class").forName("py4j.CallbackClient")  # noqa: B009
    field = of_client.getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)


def listed_jars(gateway: Any) -> list[Path]:
    """Return the jars of spark.jars in the JVM's settings, with those that it has fetched."""
    listed = str(gateway.jvm.java.lang.System.getProperty("spark.jars", ""))
    return [Path(urlparse(jar).path) for jar in listed.split(",") if jar]


def application_secret(spark: SparkSession) -> str | None:
    """Return the secret by which Spark's processes authenticate; None without one."""
    secret = jvm_of(spark).org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    return None if secret is None else str(secret)


def leave_out_jars(context: SparkContext) -> None:
    """Keep workers from looking for modules in jars.

    Spark takes the jars of spark.jars.packages for Python packages as well, which costs time as
    slackwater.scheduler.spark.worker_path explains.
    """
    includes = context._python_includes or []
    context._python_includes = [name for name in includes if not name.endswith(".jar")]


def end_quietly(context: SparkContext) -> None:
    """Keep PySpark from printing the stack of a thread whose connection a dying JVM has closed."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_: None


def shut_down() -> None:
    """End the JVM, so that the next session starts another one."""
    gateway = SparkContext._gateway
    if gateway is not None:
        SparkContext._gateway = None
        SparkContext._jvm = None
        end(gateway)


def end(gateway: JavaGateway) -> None:
    """End the JVM behind a gateway, if this program has started it."""
    process = process_behind(gateway)
    gateway.shutdown()
    if process is not None and process.stdin is not None:
        # Spark's JVM ends when its standard input does, and not with the gateway.
        process.stdin.close()
        try:
            process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def abandon() -> None:
    """Abandon an unusable JVM, dead or alive, so that the next session starts another one."""
    process = jvm_process()
    if process is not None:
        process.kill()
        process.wait()
    context = SparkContext._active_spark_context
    if context is not None:
        # Of no use for anything but to be forgotten.
        context._jsc = None
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    with suppress(Py4JError, OSError):
        shut_down()


def failed_job(spark: SparkSession, seconds_max: float) -> str | None:
    """Run a small job, and return why it failed; None if it did not, or did not end in time."""
    reasons: list[str] = []

    def run() -> None:
        try:
            # Of Java's own tasks alone.
            spark.range(1).count()
        except Exception as error:  # noqa: BLE001 - any error is the answer
            reasons.append(summary(str(error)))

    job = threading.Thread(target=run, name="probe", daemon=True)
    job.start()
    job.join(seconds_max)
    return reasons[0] if reasons else None


def work_done(session: SparkSession) -> tuple[object, ...] | None:
    """Return counts that change with all work of tasks for a session.

    Returns:
        Those of each running stage, except stages of other sessions' queries; None if all queries
        of the session wait for their next epoch.

    Raises:
        Py4JError: the JVM does not answer.
    """
    queries = session.streams.active
    if queries and not any(query.status["isTriggerActive"] for query in queries):
        return None
    own = [f"runId = {query.runId}" for query in queries]
    jsc: Any = session._jsc
    stages = jsc.sc().statusStore().activeStages()
    counts = []
    for stage in (stages.apply(number) for number in range(stages.size())):
        # Spark's description of the stage's query.
        text = str(stage.description())
        if "runId = " not in text or any(of_query in text for of_query in own):
            counts.append(tuple(getattr(stage, name)() for name in _COUNTS))
    return tuple(counts)


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Return the JVM's process; None if another program started it."""
    return process_behind(SparkContext._gateway)


def process_behind(gateway: object) -> subprocess.Popen[bytes] | None:
    """Return the JVM's process behind a gateway; None if another program started it."""
    process = getattr(gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def activate(session: SparkSession) -> None:
    """Make a session the thread's active one."""
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def executor_count(spark: SparkSession) -> int:
    """Return how many executors are registered with the driver, without the driver itself.

    Raises:
        SparkFailedError: the JVM does not answer.
    """
    jsc: Any = spark._jsc
    try:
        return int(jsc.sc().getExecutorMemoryStatus().size()) - 1
    except Py4JError as error:
        raise SparkFailedError("Spark's JVM does not answer.") from error


def joined(spark: SparkSession, folder: str, name: str) -> str:
    """Return the path of a file in a folder of any file system."""
    return str(_hadoop(spark).Path(folder, name).toString())


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files in a folder of any file system; none if it does not exist."""
    path = _hadoop(spark).Path(folder)
    files = path.getFileSystem(hadoop_conf(spark))
    if not files.exists(path):
        return []
    return [status.getPath().getName() for status in files.listStatus(path)]


def text_of(spark: SparkSession, path: str) -> str:
    """Return the text of a small file of any file system."""
    file = _hadoop(spark).Path(path)
    stream = file.getFileSystem(hadoop_conf(spark)).open(file)
    try:
        return str(jvm_of(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def rename(spark: SparkSession, folder: str, new: str) -> None:
    """Rename a folder of any file system.

    Raises:
        OSError: the file system refused.
    """
    old = _hadoop(spark).Path(folder)
    if not old.getFileSystem(hadoop_conf(spark)).rename(old, _hadoop(spark).Path(new)):
        raise OSError(f"{folder} can't be renamed to {new}")


def is_local(spark: SparkSession, path: str) -> bool:
    """Return True if a path lies on this machine's disk."""
    uri = _hadoop(spark).Path(path).toUri()
    if uri.getScheme() is None:
        uri = _hadoop(spark).FileSystem.getDefaultUri(hadoop_conf(spark))
    return bool(uri.getScheme() == "file")


def last_progress(query: StreamingQuery) -> str | None:
    """Return a query's last progress as JSON; None before the first.

    PySpark's own lastProgress takes the object apart by a hundred calls.
    """
    progress = query._jsq.lastProgress()
    return None if progress is None else str(progress.json())


def recent_progress(query: StreamingQuery) -> list[str]:
    """Return a query's last progresses as JSON, the newest last."""
    return [str(progress.json()) for progress in query._jsq.recentProgress()]


def _hadoop(spark: SparkSession) -> Any:
    return jvm_of(spark).org.apache.hadoop.fs
