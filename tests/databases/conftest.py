"""A metadata store with a pipeline, in each kind of database."""

from collections.abc import Callable, Iterator

import pytest

from slackwater.state.store import Store
from tests.support.stores import STORES


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, new_store_url: Callable[[str], str]) -> str:
    return new_store_url(request.param)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url, migrate=True)
    opened.ensure_pipeline("orders", "stream")
    yield opened
    opened.close()
