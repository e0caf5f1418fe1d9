from slackwater.monitoring.lineage_graph import to_dot
from slackwater.scheduler.lineage import states
from slackwater.state.models import Partition

A = Partition("aaaaaaaa1", 0, frozenset(), 2_000_000_000, 0)
B = Partition('aaaaaaaa"2', 2_000_000_000, frozenset({"aaaaaaaa1"}))
C = Partition("waiting", 2_000_000_000, frozenset({"aaaaaaaa1", 'aaaaaaaa"2'}))


def test_partitions_are_drawn_from_parents_to_children_in_one_order() -> None:
    dot = to_dot([C, B, A], low_watermark_ns=2_000_000_500)
    assert dot == to_dot([A, B, C], low_watermark_ns=2_000_000_500)
    assert '"aaaaaaaa1" -> "aaaaaaaa\\"2";' in dot
    assert dot.count("->") == 3


def test_states_can_be_told_apart() -> None:
    lines = to_dot([A, B, C], low_watermark_ns=2_000_000_500).splitlines()
    tips = [line.rsplit("tooltip=", 1)[1] for line in lines if "tooltip=" in line]
    assert tips == ['"finished"];', '"running"];', '"waiting"];']


def test_short_names_stay_different() -> None:
    assert 'label="aaaaaaaa1\\n0.0 s to 2.0"' in to_dot([A, B], low_watermark_ns=None)


def test_partitions_of_two_placements_with_one_token_are_two() -> None:
    same = [Partition("t", 1_000, function=function) for function in ("asia", "europe")]
    dot = to_dot(same, low_watermark_ns=500)
    assert '"asia:t" [label="asia:t' in dot
    assert '"europe:t" [' in dot
    assert states(same, 2_000).keys() == {"asia:t", "europe:t"}
