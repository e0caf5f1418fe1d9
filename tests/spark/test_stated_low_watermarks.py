"""A mirror's rows are those of the low watermark that it states, whoever states it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.timestamp import datetime_to_rfc3339
from tests.epoch_rows import inserts, low_watermark, make_sink, write


@pytest.mark.parametrize("file_format", ["delta", "iceberg"])
def test_a_former_owner_states_no_low_watermark_that_a_mirror_is_beyond(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    def owner() -> Any:
        sink = make_sink(tmp_path / "mirrors", kind="mirror", format=file_format)
        sink.position(session)
        return sink

    def stated(sink: Any) -> str:
        found = read_mirror(session, f"{tmp_path}/mirrors/{table}", sink._format)
        assert found is not None
        return found[1]

    table, former = "sales.Orders", owner()
    write(session, former, 1, inserts(1, at=1))
    with monkeypatch.context() as patched:
        # It freezes between the log's line and the tables' properties.
        patched.setattr(former, "_publish_watermark", lambda *_: None)
        write(session, former, 2, inserts(2, at=2))
        # Its successor merges the next epoch, and has not logged it yet.
        successor = owner()
        patched.setattr(successor._watermarks, "add", Mock(side_effect=OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            write(session, successor, 3, inserts(3, at=3))
    former._publish_watermark(session, {table}, low_watermark(2))
    assert stated(former) == datetime_to_rfc3339(low_watermark(1))
    write(session, successor, 3, inserts(3, at=3))
    assert stated(successor) == datetime_to_rfc3339(low_watermark(3))
