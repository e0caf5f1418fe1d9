"""The one store that the queries of a checkpoint have, under the name that each has for it."""

from pathlib import Path

import pytest

from slackwater.scheduler.spark.temporary_store import go_on_in
from slackwater.state.store import Store


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"sqlite:///{tmp_path / name / 'state.db'}" for name in ("first", "second", "third")]


def pipelines(url: str) -> list[str]:
    return [pipeline.name for pipeline in Store.open(url, migrate=False).pipelines()]


def test_a_query_that_goes_on_has_the_store_of_all_before_it(urls: list[str]) -> None:
    # Spark 4.1 has the planner use its own store before it shows the checkpoint.
    first, second, third = (Store.open(url, migrate=True) for url in urls)
    first.ensure_pipeline("notebook", "table")
    second.ensure_pipeline("unused", "table")
    assert go_on_in(urls[0], urls[1])
    assert go_on_in(urls[1], urls[2])
    Store.open(urls[2], migrate=True).ensure_pipeline("by-the-third", "table")
    for store in (second, third, first):
        store.close()
    for url in urls:
        assert pipelines(url) == ["by-the-third", "notebook"]
    # Each offset is shown again and again, its own ones, too.
    assert not any(go_on_in(other, own) for other in urls for own in urls)


def test_a_store_that_is_gone_changes_nothing(urls: list[str]) -> None:
    Store.open(urls[1], migrate=True).ensure_pipeline("notebook", "table")
    assert not go_on_in(urls[0], urls[1])
    assert pipelines(urls[1]) == ["notebook"]
