"""Removal of an Iceberg table's old snapshots and metadata files.

Iceberg's own removal of metadata files is not for a catalog of files: there a commit is a file with
the next number, and a former owner that was frozen for long would find its number free again. So
the files stay, without content, for a day.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import jvm_of
from slackwater.spark_sink.output.iceberg.retention import Snapshot, expire_before_ms
from slackwater.spark_sink.output.small_files import local_path
from slackwater.timestamp import seconds_to_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Iceberg's own removal, for catalogs that compare and swap the current metadata file.
METADATA_PROPERTIES: Final[Mapping[str, str]] = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_METADATA: Final = re.compile(r"v(\d+)\.(?:gz\.)?metadata\.json(?:\.gz)?")
# How many metadata files keep their content, for readers that have found an older one.
_METADATA_KEPT: Final = 100
# For how long a number stays taken.
_TAKEN_S: Final = 24 * 60 * 60


def remove_old_snapshots(
    spark: SparkSession, table: Any, application: str, names: tuple[str, str], keep_s: float
) -> None:
    """Expire snapshots that nobody needs, and remove the files that only they have.

    Args:
        spark: a session with Iceberg's jar.
        table: Iceberg's Table, as it is now.
        application: see expire_before_ms().
        names: the name of the application in a snapshot's summary, and the table's property with
            the published snapshot.
        keep_s: for how many seconds a snapshot that was replaced stays.

    Raises:
        Py4JJavaError: the commit failed.
    """
    metadata = table.operations().current()
    parser = jvm_of(spark).org.apache.iceberg.TableMetadataParser
    # As one text, because each field of a snapshot would be a call.
    fields = json.loads(parser.toJson(metadata))
    of_application, of_published = names
    snapshots = [
        Snapshot(item["snapshot-id"], item["timestamp-ms"], item["summary"].get(of_application))
        for item in fields.get("snapshots", ())
    ]
    published = fields["properties"].get(of_published)
    before_ms = expire_before_ms(
        snapshots,
        int(published) if published else None,
        application,
        seconds_to_ms(time.time() - keep_s),
    )
    if any(snapshot.committed_ms < before_ms for snapshot in snapshots):
        table.expireSnapshots().expireOlderThan(before_ms).retainLast(1).commit()


def set_missing_properties(table: Any, properties: Mapping[str, str]) -> None:
    """Set those properties of which a table says nothing.

    Raises:
        Py4JJavaError: the commit failed.
    """
    missing = properties.keys() - dict(table.properties())
    if missing:
        update = table.updateProperties()
        for name in missing:
            update.set(name, properties[name])
        update.commit()


def remove_old_metadata(spark: SparkSession, table: Any, keep_s: float) -> None:
    """Empty a table's old metadata files, if they are in a catalog of files on a local disk."""
    folder = local_path(spark, f"{table.location()}/metadata")
    if folder is not None:
        empty_old_metadata(folder, keep_s)


def empty_old_metadata(folder: Path, keep_s: float) -> None:
    """Empty the metadata files of a table in a catalog of files that are not read any more.

    Args:
        folder: of the metadata files, on a local disk.
        keep_s: seconds for which a file that was replaced keeps its content.
    """
    files = {int(match[1]): entry for match, entry in _metadata_files(folder)}
    now_s = time.time()
    for number in sorted(files)[:-_METADATA_KEPT]:
        status = files[number].stat()
        age_s = now_s - status.st_mtime
        if status.st_size and age_s > keep_s:
            Path(files[number].path).write_bytes(b"")
            _checksum(files[number]).unlink(missing_ok=True)
        elif not status.st_size and age_s > _TAKEN_S:
            Path(files[number].path).unlink(missing_ok=True)


def _metadata_files(folder: Path) -> Iterable[tuple[re.Match[str], os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _METADATA.fullmatch(entry.name):
                yield match, entry


def _checksum(entry: os.DirEntry[str]) -> Path:
    path = Path(entry.path)
    return path.with_name(f".{path.name}.crc")
