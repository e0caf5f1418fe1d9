"""The source of a table of Bigtable's where a notebook can't use it."""

import sys

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from slackwater.reader.bigtable.changes import SCHEMA
from slackwater.scheduler.spark.bigtable_data_source import BigtableChangesDataSource
from slackwater.worker_errors import WorkerError

NAMES = {"project": "project", "instance": "instance", "table": "table"}


def test_without_bigtables_client_the_extra_that_brings_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = BigtableChangesDataSource(NAMES)
    columns = StructType([StructField(name, BinaryType()) for name in SCHEMA.names])
    for module in ("scheduler.spark.bigtable_reader", "reader.bigtable.service"):
        monkeypatch.delitem(sys.modules, f"slackwater.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "google.cloud.bigtable_admin_v2.types", None)
    with pytest.raises(WorkerError, match=r"pip install 'slackwater\[bigtable\]'"):
        source.streamReader(columns).initialOffset()


def test_a_schema_of_the_users_own_is_refused() -> None:
    own = StructType().add("row_key", BinaryType())
    with pytest.raises(WorkerError, match=r"fixed schema\. Leave out \.schema"):
        BigtableChangesDataSource(NAMES).streamReader(own)
