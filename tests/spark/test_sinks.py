"""Formats and envelopes in one process, killed once: each output is the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators import NewDatabase
from tests.sinks import run

# tests.sinks does all of them; the others' parts are in other tests of this folder.
NAMES = ("iceberg_folders", "lines", "changelogs")


@pytest.mark.timeout(500)
def test_pipelines_of_one_process_that_is_killed_write_the_truth_each(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    equal = run(new_database(), tmp_path, NAMES)
    assert set(equal) == set(NAMES)
    assert min(equal.values()) > 100
