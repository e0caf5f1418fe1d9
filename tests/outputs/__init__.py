"""The logs of outputs on every store, and what a pipeline has written that was killed."""

from tests.outputs.changelog_tables import delta_changelog, iceberg_changelog
from tests.outputs.epoch_files import epoch_files
from tests.outputs.in_bigquery import (
    bigquery_changelog,
    bigquery_changelogs,
    bigquery_mirror,
    bigquery_upserts,
)
from tests.outputs.in_ducklake import ducklake_changelogs, ducklake_mirror
from tests.outputs.in_postgresql import postgresql_changelogs, postgresql_mirror
from tests.outputs.mirror import delta_mirror, iceberg_mirror
from tests.outputs.output import MakeOutput

# By the name of the format.
OUTPUTS: dict[str, MakeOutput] = {
    "parquet": epoch_files,
    "json": epoch_files,
    "delta": delta_changelog,
    "iceberg": iceberg_changelog,
    "bigquery": bigquery_changelog,
    "mirror": delta_mirror,
    "iceberg_mirror": iceberg_mirror,
    "bigquery_changelogs": bigquery_changelogs,
    "bigquery_mirror": bigquery_mirror,
    "bigquery_upserts": bigquery_upserts,
    "ducklake_changelogs": ducklake_changelogs,
    "ducklake_mirror": ducklake_mirror,
    "postgresql_changelogs": postgresql_changelogs,
    "postgresql_mirror": postgresql_mirror,
}
