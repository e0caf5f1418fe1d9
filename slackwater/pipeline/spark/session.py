"""The Spark session of the daemon."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from slackwater.errors import SettingsError, SparkFailedError
from slackwater.log_lines import WORKER_ENVIRONMENT, required
from slackwater.pipeline.spark.class_path import JARS, PACKAGES, jar_names, joined, names_of
from slackwater.pipeline.spark.classified_jars import with_classified_jars
from slackwater.pipeline.spark.jar_cache import fetching_alone, ivy_folder
from slackwater.pipeline.spark.jvm import (
    activate,
    application_secret,
    end,
    end_quietly,
    is_local,
    launch,
    leave_out_jars,
    listed_jars,
    process_behind,
    shut_down,
)
from slackwater.pipeline.spark.kubernetes import (
    DRIVER_CLASS_PATH,
    driver_class_path,
    executor_class_path,
    on_kubernetes,
    own_namespace,
    parallelism,
    pod_conf,
)
from slackwater.pipeline.spark.pinned_jars import require_pinned
from slackwater.pipeline.spark.sink_needs import brought_connectors, needed
from slackwater.pipeline.spark.task_writing import (
    TaskWritingBigtableSource,
    TaskWritingChangesSource,
)
from slackwater.scheduler.spark.data_source import SpannerChangesDataSource
from slackwater.sealing import seal_nothing, use_key
from slackwater.secrecy import SECRET_NAME
from slackwater.spark_sink.output.staged_file import UMASK_OF_WORKERS
from slackwater.spark_sink.session_rules import wrong_settings

_log = structlog.get_logger("slackwater.pipeline.spark.session")

# Names of settings and options that Spark shows without their values.
_SECRET_NAMES: Final = f"(?i){SECRET_NAME.pattern}"

_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.redaction.regex": _SECRET_NAMES,
    "spark.sql.redaction.options.regex": f"{_SECRET_NAMES}|url",
    # Epochs are small and frequent: a shuffle over Spark's 200 partitions would cost more than one.
    "spark.sql.shuffle.partitions": "4",
    # An epoch's plan has no shuffle to adapt, and looking for one costs time in every epoch.
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0",
    # The oldest job first, so that each pipeline's turn comes. FAIR compares stages by their names,
    # as texts: when all slots are busy, stage 99 waits until stage 990.
    "spark.scheduler.mode": "FIFO",
    # Spark's default counts nanoseconds from 1970 in 64 bits, as other readers take it: they fail
    # before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Bounds the checkpoint's offset and commit logs.
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # How often a paused pipeline without a trigger interval checks whether it is resumed.
    "spark.sql.streaming.pollingDelay": "200ms",
}

# On a local disk the manager that Spark chooses starts readlink seven times an epoch, and this one
# never: an epoch takes an eighth less. Both start chmod, and both look whether a file is there
# before they rename another to its name. On HDFS only Spark's choice leaves that to the rename.
_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_WITHOUT_READLINK: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# Without a file of checksums beside each of the checkpoint's, for which chmod is started, too. The
# cached file system has them.
_WITHOUT_CHECKSUMS: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}

# Only clients with the application's secret may talk to Spark's processes. Spark makes a new one
# for each, or reads it from a file, as docs/security.md explains.
_AUTHENTICATE: Final = "spark.authenticate"
_CLOSED: Final = {
    _AUTHENTICATE: "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
# Hadoop sets the modes of files itself.
_UMASK: Final = "spark.hadoop.fs.permissions.umask-mode"
_LOOPBACK: Final = "127.0.0.1"
_OF_LOCAL: Final = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
_SECRET: Final = "spark.authenticate.secret"  # noqa: S105 - a name
_SECRET_FILE: Final = f"{_SECRET}.file"
_SECRET_FILES: Final = (f"{_SECRET}.executor.file", _SECRET_FILE)

DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
# What has run ten times as often as by default is compiled again, at more cost. That took a third
# of the JVM's CPU until the first epoch, and most of it in the minutes after that.
_COMPILED_LATER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=10000"
    " -XX:Tier4CompileThreshold=100000 -XX:Tier4BackEdgeThreshold=400000"
)


def start_spark(
    names: Sequence[str],
    master: str,
    conf: Mapping[str, str],
    sink_formats: Collection[str],
    *,
    jars: str | None = None,
    class_archive: str | None = None,
) -> SparkSession:
    """Start a session with the source registered; conf overrides this program's own settings.

    Args:
        names: of the pipelines.
        master: Spark's master URL.
        conf: the user's settings of Spark.
        sink_formats: the formats and kinds of sinks and the connectors in use, which may need jars
            and settings.
        jars: a folder that has them, on Kubernetes the executors' image, too; None to have them
            fetched.
        class_archive: a file that `slackwater class-archive` made; None for none.

    Raises:
        SettingsError: the folder has no jars, the archive does not exist, or Spark's own settings
            file has a setting that changes the output.
        SparkFailedError: the JVM did not start, because a jar could not be fetched or for another
            reason that its output names.
    """
    # Otherwise Spark's workers start another Python, without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = SparkConf(loadDefaults=False)
    memory = _memory_environment()
    for variable, value in memory.items():
        os.environ.setdefault(variable, value)
    umask = f"{_umask():03o}"
    workers = {**memory, **WORKER_ENVIRONMENT, UMASK_OF_WORKERS: umask}
    for variable, value in workers.items():
        settings.set(f"spark.executorEnv.{variable}", value)
    settings.setAppName(f"slackwater {' '.join(names)}").setMaster(master)
    conf = _with_log_lines(conf)
    there = jar_names(conf, jars, os.environ)
    own = needed(sink_formats, conf, jars, os.environ)
    if jars is not None:
        own = {key: value for key, value in own.items() if not key.startswith(JARS)}
        conf = _with_jars(jars, master, conf)
    if class_archive is not None:
        conf = _with_option(conf, _mapping(class_archive))
    conf = _with_option(conf, _COMPILED_LATER)
    own |= _needed_to_run(master, conf) | {_UMASK: umask}
    conf = _with_secret(master, conf)
    values = joined({**_DEFAULTS, **_CLOSED, **own}, conf, there)
    for key, value in with_classified_jars(values, os.environ).items():
        settings.set(key, value)
    spark = SparkSession(_context(settings, has_own_packages=bool(names_of(conf, PACKAGES))))
    require_rules(spark)
    _seal_for_executors(spark, master)
    register_source(spark, SpannerChangesDataSource)
    return spark


def _seal_for_executors(spark: SparkSession, master: str) -> None:
    """Seal texts for tasks with the secret that executors on other machines have."""
    if is_local_master(master):
        return
    secret = application_secret(spark)
    if secret is None:
        _log.warning("Spark's processes know no secret: what tasks are sent is not encrypted")
        seal_nothing()
    else:
        files = [spark.conf.get(name, None) for name in _SECRET_FILES]
        use_key(secret, [file for file in files if file])


def _with_secret(master: str, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings with the secret of a standalone cluster, where Spark supports no file.

    Raises:
        SettingsError: the file can't be read, or there is no secret.
    """
    if not master.startswith("spark://") or conf.get(_AUTHENTICATE) == "false" or _SECRET in conf:
        return conf
    file = conf.get(_SECRET_FILE)
    try:
        secret = "" if file is None else Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(
            f"spark.conf: {_SECRET_FILE} {file} can't be read: {error.strerror}.",
            "Name the file with the cluster's secret",
        ) from error
    if not secret:
        raise SettingsError(
            f"the cluster at {master} needs a secret, and spark.conf names none.",
            f"Set {_SECRET_FILE} to a file with the spark.authenticate.secret of its master and"
            f' workers; or {_AUTHENTICATE}: "false", and everybody on its network can read what'
            " tasks are sent",
        )
    return {**{key: value for key, value in conf.items() if key != _SECRET_FILE}, _SECRET: secret}


def require_rules(spark: SparkSession) -> None:
    """Refuse settings in Spark's own file that break the rules.

    Raises:
        SettingsError: there is such a setting.
    """
    if problems := list(wrong_settings(spark.conf.getAll)):
        raise SettingsError(
            f"Spark's configuration: {'; '.join(problems)}.",
            "Take it out of spark-defaults.conf",
        )


def _with_log_lines(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Make the JVM log as this program does, unless the user configures its log."""
    form = required(WORKER_ENVIRONMENT)
    own = Path(os.environ.get("SPARK_CONF_DIR", os.devnull))
    if form is None or "log4j" in conf.get(DRIVER_OPTIONS, "") or any(own.glob("log4j2.*")):
        return conf
    file = Path(__file__).with_name(f"log4j2-{form[1]}.properties")
    return _with_option(conf, f"-Dlog4j2.configurationFile={file.as_uri()}")


def _with_option(conf: Mapping[str, str], option: str) -> Mapping[str, str]:
    """Return the settings with more options of the driver's JVM, before the user's, which win."""
    return {**conf, DRIVER_OPTIONS: f"{option} {conf.get(DRIVER_OPTIONS, '')}".strip()}


def _needed_to_run(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that depend on where Spark runs."""
    needed: dict[str, str] = {}
    if is_local_master(master):
        needed |= _OF_LOCAL
        # For its page, if that is turned on.
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    if is_local_master(master) or on_kubernetes(master):
        # On another cluster Spark's daemon may start before our packages are there.
        needed["spark.python.daemon.module"] = "slackwater.scheduler.spark.worker_daemon"
    if on_kubernetes(master):
        needed |= pod_conf(os.environ, own_namespace()) | parallelism(conf)
    return needed


def _umask() -> int:
    """Return this process's umask, which can only be read by setting another one."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def is_local_master(master: str) -> bool:
    """Return True if Spark's tasks run in the driver's own JVM."""
    return master == "local" or master.startswith("local[")


def _context(settings: SparkConf, *, has_own_packages: bool) -> SparkContext:
    """Start the JVM, and Spark in it.

    Raises:
        SparkFailedError: the JVM did not start, or has fetched a jar that was not tested.
    """
    try:
        with fetching_alone(settings):
            gateway = launch(settings)
    except (PySparkRuntimeError, OSError) as error:
        packages = settings.get(PACKAGES)
        reason = f": {error}." if isinstance(error, OSError) else "; its output above says why."
        raise SparkFailedError(
            f"Spark's JVM did not start{reason}",
            f"It fetches {packages} at its first start: if it can't reach a Maven repository, put"
            " the jars into a folder and name it in spark.jars"
            if packages
            else "",
        ) from error
    try:
        # Until there is a context, no module is searched for in jars.
        ivy = ivy_folder(settings.get("spark.jars.ivy", None))
        require_pinned(listed_jars(gateway), ivy, has_own_packages=has_own_packages)
    except BaseException:
        end(gateway)
        raise
    context = SparkContext(conf=_beside_jars(settings, gateway), gateway=gateway)
    context.setLogLevel("ERROR")
    leave_out_jars(context)
    end_quietly(context)
    return context


def _beside_jars(settings: SparkConf, gateway: object) -> SparkConf:
    """Return the settings without spark.jars if the JVM, which was started with it, is ours.

    It has added the jars of the packages to that list. Setting the list again would drop them, and
    no executor of a cluster would get them.
    """
    if process_behind(gateway) is None:
        return settings
    others = SparkConf(loadDefaults=False)
    return others.setAll([(key, value) for key, value in settings.getAll() if key != JARS])


def session_for_pipeline(spark: SparkSession, checkpoint: str) -> SparkSession:
    """Return a new session, with the source registered and settings that fit its checkpoint.

    So a session's settings are those of one pipeline. And Spark changes a registered source's
    environment on the driver whenever it plans: with one registration for several queries, a task
    that is sent meanwhile arrives broken (OptionalDataException).
    """
    session = spark.newSession()
    for source in (TaskWritingChangesSource, TaskWritingBigtableSource):
        register_source(session, source)
    if session.conf.get(_CHECKPOINT_FILES, None) is None and is_local(spark, checkpoint):
        session.conf.set(_CHECKPOINT_FILES, _WITHOUT_READLINK)
    return session


@contextmanager
def without_checksums(session: SparkSession) -> Iterator[None]:
    """Have a query that starts inside write no checksums into a local checkpoint.

    What this session writes into tables by Spark keeps those that it has: others' Spark takes a
    file for damaged whose checksum is left from before.
    """
    is_local_one = session.conf.get(_CHECKPOINT_FILES, None) == _WITHOUT_READLINK
    names = _WITHOUT_CHECKSUMS if is_local_one else {}
    for name in names:
        session.conf.set(name, names[name])
    try:
        yield
    finally:
        for name in names:
            session.conf.unset(name)


def register_source(session: SparkSession, source: type[DataSource]) -> None:
    """Register a source in this session.

    Spark refuses a name that is registered in the thread's active session and not in this one: so
    this one becomes the active one first.
    """
    activate(session)
    session.dataSource.register(source)


def _jars_in(folder: str) -> list[str]:
    jars = sorted(str(jar) for jar in Path(folder).glob("*.jar"))
    if not jars:
        raise SettingsError(
            f"spark.jars: there are no jars in {folder}.",
            f"`slackwater jars {folder}` fetches them",
        )
    return jars


def _with_jars(folder: str, master: str, conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings with the jars of a folder, which executors in pods have in their image.

    Raises:
        SettingsError: there are none.
    """
    jars = _jars_in(folder)
    if not on_kubernetes(master):
        # Of two versions Java would take the first.
        own = [connector.artifact for connector in brought_connectors(conf, folder, os.environ)]
        jars = [jar for jar in jars if not any(f"{artifact}-" in jar for artifact in own)]
        return {**conf, JARS: ",".join([*jars, *names_of(conf, JARS)])}
    os.environ[DRIVER_CLASS_PATH] = driver_class_path(folder, os.environ)
    return {**conf, **executor_class_path(folder, conf)}


def _mapping(class_archive: str) -> str:
    """Return Java's options; Java warns of an archive of another Java, and does not use it."""
    path = Path(class_archive).absolute()
    if not path.is_file():
        raise SettingsError(
            f"spark.class_archive: {class_archive} is not a file.",
            f"`slackwater class-archive {class_archive}` makes it",
        )
    return f"-XX:SharedArchiveFile={path} -Xshare:auto"


def _memory_environment() -> dict[str, str]:
    """Return variables that keep Spark's Python workers small, as in docs/performance.md."""
    # With an arena per thread, memory that many threads used stays with the process.
    variables = {"MALLOC_ARENA_MAX": "2"}
    if "jemalloc" in pa.supported_memory_backends():
        variables["ARROW_DEFAULT_MEMORY_POOL"] = "jemalloc"
    return variables


def stop_spark(spark: SparkSession) -> None:
    """Stop the session and its JVM."""
    spark.stop()
    shut_down()
