"""What comparisons of mirrors, slice by slice and round and round, have proved."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slackwater.state.verified_models import Proof, VerifiedTable, proof

NEW = VerifiedTable("orders", "T")
# Of each slice: whether the table ends with it, the rows that differ, the low watermark.
SLICES = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 0, 2]), st.integers(1, 99)))


@given(SLICES)
def test_what_is_proved_is_the_earliest_time_of_the_last_round_without_differences(
    slices: list[tuple[bool, int, int]],
) -> None:
    verified = NEW
    rounds: list[list[tuple[int, int]]] = [[]]
    for number, (is_last, different, at_ns) in enumerate(slices):
        last_key = None if is_last else f"[{number}]"
        verified = verified.after_slice(last_key, 10, different, at_ns)
        rounds[-1].append((different, at_ns))
        rounds += [[]] if is_last else []
    *whole, begun = rounds
    equal = [one for one in whole if not any(different for different, _ in one)]
    assert verified.equal_at_ns == (min(at for _, at in equal[-1]) if equal else None)
    in_last = sum(different for one in whole[-1:] for different, _ in one)
    assert verified.different_before == in_last
    assert verified.different == sum(different for different, _ in begun)
    assert verified.records == 10 * len(begun)
    assert verified.differs == bool(in_last or verified.different)


def test_a_round_that_begins_again_forgets_no_difference() -> None:
    seen = NEW.after_slice("[1]", 10, 3, 50)
    assert seen.again().after_key is None
    assert seen.again().round_at_ns is None
    assert seen.again().differs
    assert not seen.again().after_slice(None, 10, 0, 60).differs


def test_nothing_is_proved_before_each_table_was_equal_in_a_whole_round() -> None:
    equal = replace(NEW, equal_at_ns=40)
    other = VerifiedTable("orders", "U")
    assert proof([], 100) == Proof(None, ())
    assert proof([equal, other], 100) == Proof(None, ())
    assert proof([equal, replace(other, equal_at_ns=30)], 100) == Proof(30, ())
    assert proof([equal, replace(other, equal_at_ns=30, different=1)], 100) == Proof(None, ("U",))


def test_what_was_proved_of_a_later_time_than_the_outputs_counts_for_nothing() -> None:
    """The output and the metadata store were put back to a backup."""
    equal = replace(NEW, equal_at_ns=40)
    assert proof([equal], 40) == Proof(40, ())
    assert proof([equal], 39) == Proof(None, ())
    assert proof([equal], None) == Proof(None, ())
