"""Delta tables by Spark: a version lands once, and compaction changes files but no rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from slackwater.spark_sink.output.maintenance import Maintenance
from slackwater.spark_sink.tables.delta import Delta

VERSIONS = 4


def test_versions_land_once_and_small_files_become_one(
    session: SparkSession, tmp_path: Path
) -> None:
    table_format = Delta()
    path = str(tmp_path / "changes")
    assert not table_format.exists(session, path)
    for version in range(VERSIONS):
        rows = session.range(version * 10, version * 10 + 10).repartition(2)
        # Again by a process that knows nothing of the first time.
        for writer in (table_format, Delta()):
            writer.append(rows, path, "slackwater orders", version)
    table_format.append(session.range(100, 105), path, "slackwater other", 0)

    def rows_and_files() -> tuple[list[int], int]:
        table = session.table(table_format.name(session, path))
        return sorted(row["id"] for row in table.collect()), len(table.inputFiles())

    before, files = rows_and_files()
    assert before == [*range(VERSIONS * 10), *range(100, 105)]

    def maintain(spark: SparkSession, path: str) -> None:
        table_format.maintain(spark, path, "slackwater orders", 0.0)

    maintenance = Maintenance(maintain, every_s=0.0)
    maintenance.begin_if_due(session, lambda: [path, str(tmp_path / "none")])
    maintenance.wait()
    after, fewer = rows_and_files()
    assert after == before
    assert fewer == 1 < files
    # What was there before the compaction is known after it.
    Delta().append(session.range(5), path, "slackwater orders", VERSIONS - 1)
    assert rows_and_files()[0] == before
    assert not Maintenance(maintain, every_s=None).is_due
