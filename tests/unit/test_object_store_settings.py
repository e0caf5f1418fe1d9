"""The settings of a changelog in an object store."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.object_store import ObjectFiles, probe
from slackwater.spark_sink.sinks.registry import parse_sink_settings
from tests.object_stores import s3


def parse(**values: Any) -> Any:
    return parse_sink_settings(values)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "az"])
def test_files_in_an_object_store_need_no_checkpoint(scheme: str) -> None:
    # An Azure URL has no account.
    options = {"azure_storage_account_name": "account"} if scheme == "az" else {}

    def sink_in(folder: str, **values: Any) -> Any:
        return parse(path=f"{scheme}://bucket/{folder}", storage_options=options, **values)

    sink = sink_in("changes")
    assert sink.has_expendable_checkpoint
    assert sink.checkpoint == sink_in("changes").checkpoint != sink_in("other").checkpoint
    named = sink_in("changes", checkpoint="/var/lib/checkpoint")
    assert not named.has_expendable_checkpoint


def test_a_delta_table_in_an_object_store_needs_neither_checkpoint_nor_jars() -> None:
    sink = parse(path="s3://bucket/changes", format="delta", compact_every="1h")
    assert sink.has_expendable_checkpoint
    assert "delta" not in sink.spark_needs
    assert "delta" in parse(path="out", checkpoint="c", format="delta").spark_needs


@pytest.mark.parametrize("path", ["out/changes", "hdfs://host/changes", "file:///changes"])
def test_everything_else_needs_one(path: str) -> None:
    with pytest.raises(ValidationError, match="checkpoint"):
        parse(path=path)
    with pytest.raises(ValidationError, match="checkpoint"):
        parse(path="s3://bucket/changes", format="iceberg")


def test_options_that_nothing_would_use_are_refused() -> None:
    for values in ({"path": "out"}, {"path": "s3://bucket/changes", "format": "iceberg"}):
        with pytest.raises(ValidationError, match=r"spark\.conf"):
            parse(**values, checkpoint="c", storage_options={"aws_region": "r"})
    with pytest.raises(ValidationError, match="aws_regoin"):
        parse(path="s3://bucket/changes", storage_options={"aws_regoin": "r"})


def test_the_check_tries_the_store_and_leaves_nothing() -> None:
    with s3() as store:
        probe(f"{store.path}/changes", store.options)
        assert ObjectFiles(store.path, store.options, "changes").names() == []
        with pytest.raises(ObjectStoreError, match="bucket"):
            probe("s3://other/changes", store.options)


def test_the_check_refuses_a_store_that_creates_an_object_again() -> None:
    with s3() as store:
        store.heeds_conditions = False
        with pytest.raises(ObjectStoreError, match="creates an object again"):
            probe(f"{store.path}/changes", store.options)
