"""A start with an archive of the JVM's classes."""

from pathlib import Path

import pytest

from slackwater.errors import SettingsError
from slackwater.pipeline.spark.session import start_spark


def test_an_archive_that_is_not_there_is_named_with_what_makes_it(tmp_path: Path) -> None:
    path = str(tmp_path / "none.jsa")
    made_by = r"none\.jsa is not a file.*slackwater class-archive"
    with pytest.raises(SettingsError, match=made_by):
        start_spark(["orders"], "local[1]", {}, (), class_archive=path)
