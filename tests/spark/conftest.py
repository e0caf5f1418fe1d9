"""An object store for a module's tests; and no test leaves a service running."""

import contextlib
from collections.abc import Iterator

import psutil
import pytest

from tests.support.object_stores import OTHERS, STORES, ServedStore


@pytest.fixture(scope="module", params=["s3", "gs", OTHERS[1]])
def store(request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    """A store of each kind, with one bucket."""
    with STORES[request.param]() as served:
        yield served


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
