"""A mirror is its table, by value, at the low watermark that it states."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.reader.change_stream import Dialect
from tests.proofs.mirrors import KINDS, Destination, run
from tests.support import mixed_load
from tests.support.emulators import NewDatabase


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize(("dialect", "capture", "deletes", "table_format"), KINDS)
def test_mirrors_equal_their_tables_at_their_watermark_through_a_kill(
    dialect: Dialect,
    capture: str,
    deletes: str,
    table_format: str,
    new_database: NewDatabase,
    tmp_path: Path,
) -> None:
    stream = new_database(dialect, mixed_load.ddl(dialect, capture), mixed_load.CHANGE_STREAM)
    marked = run(
        stream,
        dialect,
        tmp_path,
        deletes=deletes,
        destination=Destination(table_format),
        changes=200,
        looks=2,
        kills_after=(0,),
    )
    assert (marked > 10) == (deletes == "mark")
