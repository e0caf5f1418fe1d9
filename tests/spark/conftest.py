"""Stores and formats of mirrors for the modules here; and no test leaves a service running."""

import contextlib
from collections.abc import Iterator

import psutil
import pytest

from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.object_stores import OTHERS, STORES, ServedStore


@pytest.fixture(scope="module", params=["s3", "gs", OTHERS[1]])
def store(request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    """A store of each kind, with one bucket."""
    with STORES[request.param]() as served:
        yield served


@pytest.fixture(params=[Delta, Iceberg], ids=lambda made: str(made.using))
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    """Each format of mirrors."""
    made: TableFormat = request.param()
    return made


@pytest.fixture(autouse=True)
def _no_service_is_left() -> Iterator[None]:
    """Others would have to share the machine with it; one of a whole module's is there before."""
    before = set(psutil.Process().children())
    yield
    for child in set(psutil.Process().children(recursive=True)) - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            if "slackwater.cli" in child.cmdline():
                for process in (child, *child.children(recursive=True)):
                    process.kill()
