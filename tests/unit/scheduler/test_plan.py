"""A plan gives every root partition to one task, and balances the tasks by recent records."""

from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.plan import balance
from slackwater.state.models import Partition, Plan

PLAN = Plan("plan", "orders", watermark_for_end(0), watermark_for_end(100_000))


@given(st.lists(st.integers(0, 10_000), max_size=40), st.integers(1, 8))
def test_a_plan_gives_every_root_to_one_task_and_balances_their_load(
    records: list[int], tasks_max: int
) -> None:
    roots = [Partition(f"p{i}", 0) for i in range(len(records))]
    partition_load = {root.token: n for root, n in zip(roots, records, strict=True) if n}
    tasks = balance(PLAN, roots, partition_load, tasks_max=tasks_max)
    assert sorted(p.token for task in tasks for p in task.roots) == sorted(p.token for p in roots)
    assert [task.index for task in tasks] == list(range(min(tasks_max, len(roots))))
    assert all(task.roots for task in tasks)
    if tasks:
        # A query counts as 100 records.
        loads = [sum(partition_load.get(p.token, 0) + 100 for p in task.roots) for task in tasks]
        assert max(loads) <= sum(loads) / len(loads) + max(records) + 100


def test_a_plan_without_earlier_records_spreads_its_roots_evenly() -> None:
    roots = [Partition(f"p{i}", 0) for i in range(10)]
    tasks = balance(PLAN, roots, {}, tasks_max=4)
    assert {len(task.roots) for task in tasks} == {2, 3}
