"""A metadata store of the release before is upgraded in place, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from slackwater.scheduler.lineage import is_finished
from slackwater.state import tables
from slackwater.state.commit import commit_epoch
from slackwater.state.models import Partition, Plan
from slackwater.state.mutable_lineage import lineage_since_ns, partitions_with_mutable_ranges
from slackwater.state.plans import latest_plan
from slackwater.state.store import Store

RELEASED = "0006"
ROWS = (
    "INSERT INTO pipelines (name, source, low_watermark_ns, wanted)"
    " VALUES ('orders', 'stream', 500, 'running')",
    "INSERT INTO partitions (pipeline, token, start_timestamp_ns, end_timestamp_ns, end_found_ns)"
    " VALUES ('orders', 'a', 0, 900, NULL), ('orders', 'b', 900, NULL, NULL)",
    "INSERT INTO partition_parents (pipeline, token, parent_token) VALUES ('orders', 'b', 'a')",
    "INSERT INTO plans (plan_id, pipeline, number, start_ns, end_ns)"
    " VALUES ('p1', 'orders', 1, 500, 1500)",
    "INSERT INTO plan_tasks (plan_id, task, records, late_records, violations)"
    " VALUES ('p1', 0, 7, 0, '')",
    "INSERT INTO plan_arrivals (plan_id, token, parent_token, task) VALUES ('p1', 'b', 'a', 0)",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that the release before left in the middle of an epoch, opened by this program."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "slackwater.state:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, RELEASED)
        for row in ROWS:
            connection.execute(sa.text(row))
    engine.dispose()
    opened = Store.open(url, migrate=True)
    yield opened
    opened.close()


def test_the_store_is_upgraded(store: Store) -> None:
    statement = sa.text("SELECT version_num FROM alembic_version")
    assert store.read(lambda c: c.execute(statement).scalar()) == tables.HEAD
    assert RELEASED < tables.HEAD


def test_lineage_and_plans_are_as_before(store: Store) -> None:
    assert store.partitions("orders") == [
        Partition("a", 0, frozenset(), 900),
        Partition("b", 900, frozenset({"a"})),
    ]
    assert latest_plan(store, "orders") == Plan("p1", "orders", 500, 1_500)
    assert partitions_with_mutable_ranges(store, "orders") == []
    assert lineage_since_ns(store, "orders") is None


def test_an_epoch_that_the_release_before_has_read_is_committed(store: Store) -> None:
    assert commit_epoch(store, "orders", 1_500)
    finished = [p.token for p in store.partitions("orders") if is_finished(p, 1_500)]
    assert finished == ["a"]
