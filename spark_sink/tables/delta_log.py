"""Reads the commits of a Delta table from its log, as Delta's protocol describes the files.

DESCRIBE HISTORY does not show a commit's transaction identifier, which is the low watermark of the
epoch that was merged with it.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from slackwater.spark_sink.output.delta_maintenance import files_in, log_files
from slackwater.spark_sink.tables.table_history import BEFORE_ALL_US, Commit, History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
_ACTIONS: Final = (
    "txn STRUCT<appId: STRING, version: BIGINT>, add STRUCT<path: STRING>,"
    " commitInfo STRUCT<operation: STRING, operationParameters: STRUCT<mode: STRING>>"
)


def read_history(
    spark: SparkSession, path: str, application: str, options: Mapping[str, str]
) -> History:
    """Return the commits from which a table can still be read.

    Args:
        spark: a session.
        path: the table's directory.
        application: the writer whose transaction identifiers are low watermarks.
        options: of the object store; see open_object_store().
    """
    from pyspark.sql import functions as F

    folder = f"{path}/{LOG}"
    first, checkpoint = first_readable(log_files(path, options).names())
    name = F.col("_metadata.file_name")
    info = F.col("commitInfo")
    commits = (
        spark.read.schema(_ACTIONS)
        .json(f"{folder}/*.json")
        .where(name.rlike(f"^{_COMMIT.pattern}$"))
        .groupBy(F.substring(name, 1, 20).cast("bigint").alias("version"))
        .agg(
            F.max(F.when(F.col("txn.appId") == application, F.col("txn.version"))).alias("merged"),
            F.max((info.operation == "WRITE") & (info.operationParameters.mode == "Overwrite")),
            F.max(F.col("add.path").isNotNull()),
        )
        .where(F.col("version") >= first)
        .orderBy("version")
        .collect()
    )
    listed = [
        Commit(version, merged, bool(is_rewrite), bool(has_rows))
        for version, merged, is_rewrite, has_rows in commits
    ]
    if not checkpoint:
        return History(listed, is_whole=first == 0)
    files = [f"{folder}/{file}" for file in checkpoint]
    begin = Commit(first, _checkpoint_watermark_us(spark, files, application))
    return History([begin, *(c for c in listed if c.version > first)], is_whole=False)


def first_readable(names: Collection[str]) -> tuple[int, Sequence[str]]:
    """Return the earliest version that can be read, and the files of its checkpoint.

    A version can be read if all commits up to it are there, or those since a checkpoint.

    Args:
        names: of the files in the log.

    Returns:
        The version, and no files if it is the table's first.
    """
    commits = {int(match[1]) for match in map(_COMMIT.fullmatch, names) if match}
    oldest = max(commits, default=0)
    while oldest - 1 in commits:
        oldest -= 1
    if oldest == 0:
        return 0, ()
    checkpoints: defaultdict[int, list[str]] = defaultdict(list)
    for name in names:
        if match := _CHECKPOINT.fullmatch(name):
            checkpoints[int(match[1])].append(name)
    # A checkpoint and the first commit that is there may be neighbors.
    usable = [version for version in checkpoints if version >= oldest - 1]
    first = min(usable, default=oldest)
    files = sorted(checkpoints.get(first, ()))
    # Both kinds of file may be there; each has all that is needed here.
    return first, [file for file in files if file.endswith(".parquet")] or files


def missing_files(spark: SparkSession, path: str, version: int, options: Mapping[str, str]) -> bool:
    """Return whether a version's data files were removed, as VACUUM does.

    Only files in the table's own directory are looked for: a mirror has no partitions.

    Raises:
        AnalysisException: Delta does not read this version any more.
    """
    files = spark.read.format("delta").option("versionAsOf", version).load(path).inputFiles()
    root = posixpath.basename(path.rstrip("/"))
    names = {
        unquote(posixpath.basename(file))
        for file in files
        if unquote(posixpath.basename(posixpath.dirname(file))) == root
    }
    return not names <= set(files_in(path, options, "").names())


def _checkpoint_watermark_us(spark: SparkSession, files: Sequence[str], application: str) -> int:
    """Return the transaction identifier of an application in a checkpoint."""
    from pyspark.sql import functions as F

    is_json = files[0].endswith(".json")
    reader = spark.read.schema(_ACTIONS) if is_json else spark.read
    actions = reader.json(list(files)) if is_json else reader.parquet(*files)
    transaction = actions.where(F.col("txn.appId") == application)
    row = transaction.agg(F.max("txn.version")).first()
    return BEFORE_ALL_US if row is None or row[0] is None else int(row[0])
