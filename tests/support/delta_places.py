"""Places of the Delta tables that tests make: a disk, and an object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_stores import s3

# A table's path, and the options of its store.
Location = tuple[str, dict[str, str]]


@pytest.fixture(params=["disk", "store"])
def delta_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """The path of a table, and the options of its store."""
    if request.param == "disk":
        yield str(tmp_path / "table"), {}
        return
    with s3() as store:
        yield f"{store.path}/table", dict(store.options)
