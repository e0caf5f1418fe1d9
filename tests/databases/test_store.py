"""What the metadata store promises, on SQLite, on PostgreSQL and on Spanner."""

import contextlib
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from slackwater.scheduler.lineage import lineage_at
from slackwater.state import tables
from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.epochs import last_epochs, prune_epochs, record_epoch
from slackwater.state.errors import (
    ContradictionError,
    LeaseLostError,
    LineageMissingError,
    NewerSchemaError,
    PipelineMismatchError,
    PlanMissingError,
    StoreRefusedError,
    StoreUnreachableError,
    StoreUrlError,
)
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import DesiredState, Epoch, Partition, Plan, TaskCounts
from slackwater.state.plans import begin_plan, plan_by_id
from slackwater.state.store import Store
from slackwater.state.transaction import Transaction
from slackwater.testing.emulator import Emulator
from tests.support.processes import pool
from tests.support.waiting import wait_until

A = Partition("a", 0)
B = Partition("b", 0)
C = Partition("c", 10, frozenset({"a", "b"}))


def test_the_migrations_make_the_tables_that_the_code_uses(store: Store, url: str) -> None:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        if store.is_on_spanner:
            assert shape_of(engine) == shape_of_the_code()
        else:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, tables.metadata) == []
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == (
            tables.HEAD
        )
    engine.dispose()


Shape = dict[str, tuple[dict[str, bool], list[str], set[tuple[str, ...]]]]


def shape_of(engine: sa.Engine) -> Shape:
    """Columns and whether they may be NULL, key, indexes: alembic can't compare Spanner's."""
    inspector = sa.inspect(engine)
    return {
        name: (
            {column["name"]: column["nullable"] for column in inspector.get_columns(name)},
            inspector.get_pk_constraint(name)["constrained_columns"],
            {tuple(map(str, index["column_names"])) for index in inspector.get_indexes(name)},
        )
        for name in inspector.get_table_names()
        if name != "alembic_version"
    }


def shape_of_the_code() -> Shape:
    return {
        table.name: (
            {column.name: bool(column.nullable) for column in table.columns},
            [column.name for column in table.primary_key],
            {tuple(column.name for column in index.columns) for index in table.indexes},
        )
        for table in tables.metadata.sorted_tables
    }


def open_and_look(url: str) -> int:
    store = Store.open(url, migrate=True)
    try:
        return len(store.pipelines())
    finally:
        store.close()


def test_many_processes_may_make_the_schema_at_once(url: str) -> None:
    with pool(4) as processes:
        assert list(processes.map(open_and_look, [url] * 4)) == [0] * 4


def test_a_newer_schema_is_refused_and_left_alone(store: Store, url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        # Spanner does not change a primary key.
        connection.execute(sa.text("DELETE FROM alembic_version WHERE true"))
        connection.execute(sa.text("INSERT INTO alembic_version (version_num) VALUES ('9999')"))
    for migrate in (True, False):
        with pytest.raises(NewerSchemaError, match="9999"):
            Store.open(url, migrate=migrate)
    engine.dispose()


def test_a_pipeline_keeps_to_its_change_stream(store: Store) -> None:
    with pytest.raises(PipelineMismatchError, match="another name"):
        store.ensure_pipeline("orders", "another stream")


def test_a_former_owner_removes_no_partition_of_the_new_one(store: Store) -> None:
    """It froze after it had chosen them; the new owner has found them again, and reads them."""
    former = acquire_lease(store, "orders", "former", read_lease(store, "orders"))
    assert former is not None
    owner = acquire_lease(store, "orders", "owner", former)
    assert owner is not None
    restart_at(store, "orders", 5, [A, B], generation=owner.generation)
    with pytest.raises(LeaseLostError, match="owner took over"):
        store.remove_partitions("orders", [A.key], 0, generation=former.generation)
    assert store.partitions("orders") == [A, B]
    store.remove_partitions("orders", [A.key], 0, generation=owner.generation)
    assert store.partitions("orders") == [B]


def test_two_pipelines_in_one_store_do_not_touch_each_other(store: Store) -> None:
    store.ensure_pipeline("payments", "stream")
    store.replace_partitions("orders", [A, B, C])
    store.replace_partitions("payments", [A])
    begin_plan(store, Plan("p1", "payments", 0, 7), tasks=0)
    commit_epoch(store, "payments", 7)
    restart_at(store, "payments", 5, [A])
    store.remove_partitions("payments", [A.key], 0)
    assert store.partitions("orders") == [A, B, C]
    assert store.partitions("payments") == []
    orders = store.pipeline("orders")
    assert orders is not None
    assert (orders.low_watermark_ns, orders.planned_watermark_ns) == (None, None)


def test_what_is_wanted_of_a_pipeline_is_kept(store: Store) -> None:
    running, awaiting = DesiredState.RUNNING, DesiredState.AWAITING_OPERATOR
    store.request("orders", DesiredState.DRAINING)
    requested = store.pipeline("orders")
    assert requested is not None
    assert requested.desired_state is DesiredState.DRAINING
    store.set_desired_state("orders", awaiting, in_place_of={running}, generation=0)
    store.set_desired_state("orders", running, in_place_of={DesiredState.DRAINING}, generation=1)
    assert store.pipeline("orders") == requested
    store.set_desired_state("orders", running, in_place_of={DesiredState.DRAINING}, generation=0)
    assert store.pipeline("orders") == replace(requested, desired_state=running)


@pytest.mark.parametrize("ends", [DesiredState.DRAINING, DesiredState.STOPPED])
def test_a_pause_outlasts_the_request_that_ends_its_process(
    store: Store, ends: DesiredState
) -> None:
    for wanted in (DesiredState.PAUSED, DesiredState.RUNNING):
        store.request("orders", wanted)
        store.request("orders", ends)
        for _ in ("the process that ends", "the next one"):
            store.set_desired_state(
                "orders", DesiredState.RUNNING, in_place_of={ends}, generation=0
            )
            pipeline = store.pipeline("orders")
            assert pipeline is not None
            assert pipeline.desired_state is wanted


def test_a_store_opened_again_in_its_process_sees_what_other_processes_write(
    store: Store, url: str
) -> None:
    for wanted in (DesiredState.PAUSED, DesiredState.RUNNING, DesiredState.DRAINING):
        Store.open(url, migrate=True).close()
        with pool(1) as other:
            other.submit(_want, url, wanted).result()
        known = store.pipeline("orders")
        assert known is not None
        assert known.desired_state is wanted


def _want(url: str, wanted: DesiredState) -> None:
    store = Store.open(url, migrate=False)
    store.request("orders", wanted)
    store.close()


def test_facts_written_twice_change_nothing(store: Store) -> None:
    store.replace_partitions("orders", [A, B])
    for _ in range(2):
        store.run(lambda t: t.record_partitions("orders", [C], t.partitions("orders", [C.key])))
        store.run(lambda t: t.record_ends("orders", {A.key: 10}))
    assert store.partitions("orders") == [
        replace(A, end_timestamp_ns=10),
        B,
        C,
    ]


def test_two_different_ends_of_one_partition_are_refused(store: Store) -> None:
    store.replace_partitions("orders", [A])
    store.run(lambda t: t.record_ends("orders", {A.key: 10}))
    with pytest.raises(ContradictionError, match="10 and at 11"):
        store.run(lambda t: t.record_ends("orders", {A.key: 11}))


def test_two_different_ends_at_the_same_moment_are_refused(store: Store) -> None:
    store.replace_partitions("orders", [A])
    both_recorded = Barrier(2)

    def record(end_ns: int) -> str:
        def work(transaction: Transaction) -> str:
            transaction.record_ends("orders", {A.key: end_ns})
            # Met only if neither waits for the other, which is what must not be.
            with contextlib.suppress(BrokenBarrierError):
                both_recorded.wait(0.5)
            return "recorded"

        try:
            return store.run(work)
        except ContradictionError:
            return "refused"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(record, (10, 11))) == ["recorded", "refused"]


def test_the_end_of_a_forgotten_partition_is_refused(store: Store) -> None:
    with pytest.raises(LineageMissingError, match="run the pipeline in one process only"):
        store.run(lambda t: t.record_ends("orders", {A.key: 10}))


def test_a_partition_is_never_read_without_its_parents(store: Store, url: str) -> None:
    """Rows and links are read one after the other; what happens between them must not show."""
    store.replace_partitions("orders", [A, B, C])
    other = Store.open(url, migrate=False)
    between: list[Callable[[], None]] = [lambda: other.remove_partitions("orders", [A.key], 0)]

    def after(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "FROM partitions" in statement and between:
            between.pop()()

    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        assert lineage_at(store.partitions("orders"), 0) == [A, B, C]
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", after)
    assert not between
    assert store.partitions("orders") == [B, replace(C, parents=frozenset({"b"}))]
    other.close()


def test_the_lineage_at_a_watermark_is_what_is_unfinished_and_its_parents(store: Store) -> None:
    old = Partition("old", 0, frozenset(), 5, 0)
    a = replace(A, parents=frozenset({"old"}), start_timestamp_ns=5)
    store.replace_partitions("orders", [old, a, B, C])
    begin_plan(store, Plan("p1", "orders", 8, 20), tasks=1)
    store.run(lambda t: t.record_ends("orders", {A.key: 10}))
    store.run(lambda t: t.add_ends("p1", [A.key], 0))
    # Not committed: what showed the end may never be.
    shown = replace(a, end_timestamp_ns=10)
    assert lineage_at(store.partitions("orders"), 20) == [B, old, shown, C]
    store.run(lambda t: t.seal_task("p1", 0, TaskCounts()))
    commit_epoch(store, "orders", 20)
    ended = replace(shown, end_confirmed_in_epoch_ns=8)
    assert lineage_at(store.partitions("orders"), 20) == [B, ended, C]
    # At the watermark whose epoch found the end, the partition is not finished yet.
    assert lineage_at(store.partitions("orders"), 8) == [B, old, ended, C]


def test_a_forgotten_partition_is_no_parent_any_more(store: Store) -> None:
    store.replace_partitions("orders", [A, B, C])
    store.remove_partitions("orders", [A.key], 0)
    assert store.partitions("orders") == [B, replace(C, parents=frozenset({"b"}))]


def test_a_plan_begun_twice_is_one_plan(store: Store) -> None:
    """A commit whose answer was lost is tried again, and finds the plan it made."""
    for i in (1, 2, 2, 2):
        begin_plan(store, Plan(f"p{i}", "orders", 0, 7), tasks=1)
    assert plan_by_id(store, "p1") == Plan("p1", "orders", 0, 7)


def test_old_plans_are_forgotten(store: Store) -> None:
    for i in range(5):
        begin_plan(store, Plan(f"p{i}", "orders", i, i + 1), tasks=1)
    assert plan_by_id(store, "p4") == Plan("p4", "orders", 4, 5)
    assert plan_by_id(store, "p3").plan_id == "p3"
    with pytest.raises(PlanMissingError, match="Every Spark executor"):
        plan_by_id(store, "p2")


def test_epochs_are_kept_in_order_and_pruned(store: Store) -> None:
    for i in (2, 1, 3, 3):
        record_epoch(store, Epoch("orders", i - 1, i, 10 * i, i, 1, 99, 0.5))
    assert [e.end_ns for e in last_epochs(store, "orders", limit=9)] == [1, 2, 3]
    prune_epochs(store, "orders", keep=2)
    assert [e.records for e in last_epochs(store, "orders", limit=9)] == [20, 30]


def test_ten_thousand_partitions_are_read_back_whole(store: Store) -> None:
    # The emulator takes a millisecond or more for a row.
    pairs = 300 if store.is_on_spanner else 5_000
    parents = [Partition(f"p{i}", 0, frozenset(), 10, 0) for i in range(pairs)]
    children = [Partition(f"c{i}", 10, frozenset({f"p{i}"})) for i in range(pairs)]
    store.replace_partitions("orders", parents + children)
    assert set(lineage_at(store.partitions("orders"), 20)) == set(parents + children)
    store.remove_partitions("orders", [p.key for p in parents], 0)
    assert {p.parents for p in store.partitions("orders")} == {frozenset()}


def test_a_sqlite_store_is_private_to_its_user(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    store.ensure_pipeline("orders", "stream")
    made = sorted(tmp_path.iterdir())
    assert [path.name for path in made] == ["state.db", "state.db-shm", "state.db-wal"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    store.close()


def test_a_store_that_only_looks_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="does not exist"):
        Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=False)
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slackwater.state.store._OPEN_PATIENCE_S", 0.3)
    with pytest.raises(StoreUnreachableError) as caught:
        Store.open("postgresql+psycopg://user:secret@127.0.0.1:1/db", migrate=True)
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_text("not a database " * 100)
    with pytest.raises(StoreRefusedError, match="not a database"):
        Store.open(f"sqlite:///{path}", migrate=True)
    assert path.read_text() == "not a database " * 100


def test_what_spanner_aborts_is_run_again_with_the_rows_that_came_meanwhile(
    new_store_url: Callable[[str], str],
) -> None:
    """The library would repeat the statements and pass over rows after those that were read."""
    store = Store.open(new_store_url("spanner"), migrate=True)
    attempts = []

    def work(transaction: Transaction) -> None:
        attempts.append(transaction.observed_ends("plan"))
        if len(attempts) == 1:
            # The emulator lets it run in one of five attempts.
            store.run(lambda t: t.add_ends("plan", [A.key], 0), patience_s=300)
        transaction.add_ends("plan", [B.key], 1)

    store.run(work, patience_s=300)
    assert attempts == [{}, {A.key: 0}]
    store.close()


def test_a_spanner_database_that_does_not_exist_is_named(emulator: Emulator) -> None:
    del emulator
    with pytest.raises(StoreRefusedError, match=r"instances/none/databases/none refuses: 404"):
        Store.open(
            "spanner+spanner:///projects/test-project/instances/none/databases/none", migrate=True
        )


def test_a_process_keeps_one_connection_of_postgresqls(new_postgres_url: Callable[[], str]) -> None:
    """A hundred tasks have one each, and a server 100 by default: the other ones are closed."""
    url = new_postgres_url()
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    with contextlib.closing(Store.open(url, migrate=True)) as store:
        at_once = Barrier(3, timeout=60)

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: store.run(lambda _: at_once.wait()), range(3)))
        # The server ends those of the other two a moment later.
        wait_until(lambda: store.read(lambda c: c.scalar(count)) == 1)


def test_a_user_without_rights_is_told_so(new_postgres_url: Callable[[], str]) -> None:
    url = sa.make_url(new_postgres_url())
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE ROLE no_rights LOGIN PASSWORD 'secret'"))
    engine.dispose()
    url = url.set(username="no_rights", password="secret")
    with pytest.raises(StoreRefusedError, match="permission denied") as caught:
        Store.open(url.render_as_string(hide_password=False), migrate=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "oracle9://x",
        "postgresql+psycopg://u@host:port/db",
        "sqlite://",
        "sqlite:///:memory:",
        "spanner+spanner:///projects/p/instances/i",
        *(
            f"spanner+spanner:///projects/p/instances/i/databases/d?{query}"
            for query in (
                "endpiont=h",
                "endpoint=h&plaintext=yes",
                "endpoint=h&endpoint=i",
                "endpoint=h&anonymous=true",
                "endpoint=h&ca_certificate=f",
            )
        ),
    ],
)
def test_a_url_that_cannot_be_a_store_is_refused(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
    with pytest.raises(StoreUrlError, match="Write sqlite"):
        Store.open(bad, migrate=True)
