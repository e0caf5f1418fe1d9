"""Delta and Iceberg tables: a version lands once, and compaction changes files but no rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.output.maintenance import Maintenance
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat

VERSIONS = 4


@pytest.mark.parametrize("table_format", [Delta(), Iceberg()], ids=lambda f: str(f.using))
def test_versions_land_once_and_small_files_become_one(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    path = str(tmp_path / "changes")
    assert not table_format.exists(session, path)
    for version in range(VERSIONS):
        rows = session.range(version * 10, version * 10 + 10).repartition(2)
        # Again by a process that knows nothing of the first time.
        for writer in (table_format, type(table_format)()):
            writer.append(rows, path, "slackwater orders", version)
    table_format.append(session.range(100, 105), path, "slackwater other", 0)

    def rows_and_files() -> tuple[list[int], int]:
        table = session.table(table_format.name(session, path))
        name = table_format.name(session, path)
        is_iceberg = table_format.using == "iceberg"
        files = session.table(f"{name}.files").count() if is_iceberg else len(table.inputFiles())
        return sorted(row["id"] for row in table.select("id").collect()), files

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
    type(table_format)().append(session.range(5), path, "slackwater orders", VERSIONS - 1)
    assert rows_and_files()[0] == before
    assert not Maintenance(maintain, every_s=None).is_due


def test_a_catalog_removes_the_metadata_of_a_changelog(
    session: SparkSession, tmp_path: Path
) -> None:
    """A changelog's table is created by its first epoch, which does not know the properties."""
    catalog = "spark.sql.catalog.of_changelog"
    session.conf.set(f"{catalog}.type", "hadoop")
    session.conf.set(f"{catalog}.warehouse", str(tmp_path))
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    path, table_format = str(tmp_path / "changes"), Iceberg("of_changelog.tables")
    table_format.ensure_retention(session, path, 60.0)
    table_format.append(session.range(1), path, "slackwater orders", 0)
    name = table_format.name(session, path)
    session.sql(
        f"ALTER TABLE {name} SET TBLPROPERTIES ('write.metadata.previous-versions-max' = 7)"
    )
    table_format.ensure_retention(session, path, 60.0)
    properties = {
        row["key"]: row["value"] for row in session.sql(f"SHOW TBLPROPERTIES {name}").collect()
    }
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert properties["write.metadata.previous-versions-max"] == "7"
