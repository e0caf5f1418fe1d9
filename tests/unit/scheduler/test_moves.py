"""The audit of moves of keys; tests/simulation holds it against random histories."""

from dataclasses import replace

from slackwater.reader.records import PartitionEventRecord
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.moves import count_moves, describe_unmatched
from slackwater.state.models import MoveCounts

CUT = Cut(9_500, 19_500)


def test_a_move_needs_both_sides_at_the_same_time() -> None:
    move_out = PartitionEventRecord(12_000, "1", "a", (), ("b",))
    move_in = PartitionEventRecord(12_000, "9", "b", ("a",), ())
    assert count_moves([move_out, move_in], CUT) == ()
    (seen_out,) = one_task = count_moves([move_out], CUT)
    other_task = count_moves([move_in], CUT)
    assert (seen_out.moves_out, seen_out.moves_in) == (1, 0)
    assert describe_unmatched([*one_task, *other_task]) == []
    elsewhere = count_moves([replace(move_in, move_in_sources=("c",))], CUT)
    (said,) = describe_unmatched([*one_task, *elsewhere])
    assert said.endswith("not every move was read from both sides: 1 out and 1 in")
    late = count_moves([replace(move_in, commit_timestamp_ns=13_000)], CUT)
    assert describe_unmatched([*one_task, *late])
    assert count_moves([replace(move_out, commit_timestamp_ns=9_000)], CUT) == ()


def test_the_digest_of_many_moves_fits_the_stores_column() -> None:
    events = [PartitionEventRecord(12_000, str(i), f"p{i}", (), ("b",)) for i in range(1_000)]
    (counts,) = count_moves(events, CUT)
    assert isinstance(counts, MoveCounts)
    assert 0 <= counts.digest < 2**63
