"""Which version of a mirror stands at a low watermark, whatever else is in its history."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.tables.by_driver.delta_history import first_readable
from slackwater.spark_sink.tables.iceberg_history import Ancestor, ancestors
from slackwater.spark_sink.tables.table_history import BEFORE_ALL_US, Commit, History, version_at


def at(commits: Sequence[Commit], low_watermark_us: int, *, is_whole: bool = True) -> int | None:
    return version_at(History(commits, is_whole), low_watermark_us, "Orders")


def test_a_table_that_was_made_later_has_no_version() -> None:
    made_later = [Commit(0, has_rows=False), Commit(1, has_rows=False), Commit(2, 30)]
    assert at(made_later, 20) is None
    assert at(made_later, 30) == 2
    assert at([Commit(7, 30)], 20) is None
    assert at([], 20) is None


def test_what_was_removed_is_an_error_that_says_how_far_back_one_can_go() -> None:
    commits = [Commit(7), Commit(8, 30_000_000), Commit(9, 40_000_000)]
    with pytest.raises(AsOfTimeError, match=r"Orders .* back to 1970-01-01T00:00:30\.000000Z"):
        at(commits, 20_000_000, is_whole=False)
    assert at(commits, 30_000_000, is_whole=False) == 8
    with pytest.raises(AsOfTimeError, match="no low watermark that is known"):
        at([Commit(7)], 20, is_whole=False)
    # The checkpoint says that nothing was merged before it.
    assert at([Commit(7, BEFORE_ALL_US), *commits[1:]], 20, is_whole=False) == 7


HAPPENINGS = st.lists(st.sampled_from(["merge", "idle", "other", "rewrite"]), max_size=30)


@given(HAPPENINGS, st.integers(0, 30))
def test_the_version_has_the_merges_of_all_epochs_up_to_the_low_watermark_and_no_other(
    happenings: list[str], cut: int
) -> None:
    commits = [Commit(0)]
    epoch, contents = 0, {0: 0}
    for happening in happenings:
        if happening in ("merge", "idle"):
            epoch += 1
        if happening == "idle":
            continue
        low_watermark = epoch if happening == "merge" else None
        # A table is written again for the next epoch, so that its former columns are gone.
        commits.append(Commit(len(commits), low_watermark, is_rewrite=happening == "rewrite"))
        merged = contents[len(commits) - 2]
        contents[len(commits) - 1] = epoch if happening == "merge" else merged
    version = at(commits, cut)
    assert version is not None
    assert contents[version] == max((c for c in contents.values() if c <= cut), default=0)
    last_merge = max(v for v in range(version + 1) if v == 0 or commits[v].low_watermark_us)
    assert not any(commits[v].is_rewrite for v in range(last_merge + 1, version + 1))
    # What others commit, such as a compaction, counts up to there.
    for following in commits[version + 1 : version + 2]:
        assert following.is_rewrite or (following.low_watermark_us or 0) > cut


def name(version: int, rest: str = "json") -> str:
    return f"{version:020}.{rest}"


def test_a_delta_table_is_read_from_its_first_commit_or_from_a_checkpoint() -> None:
    commits = [name(version) for version in range(5, 12)]
    assert first_readable([*map(name, range(5)), *commits, "_last_checkpoint"]) == (0, False)
    checkpoints = [
        name(10, "checkpoint.parquet"),
        name(7, "checkpoint.0000000002.0000000002.parquet"),
        name(7, "checkpoint.0000000001.0000000002.parquet"),
        name(2, "checkpoint.parquet"),
    ]
    assert first_readable([*commits, *checkpoints]) == (7, True)
    # A new kind of checkpoint beside one of the former kind, right before the first commit.
    both = [
        name(4, "checkpoint.80a083e8-7026-4b7a-b1f0-3f2c1d0e9a8b.json"),
        name(4, "checkpoint.parquet"),
    ]
    assert first_readable([*commits, *both]) == (4, True)
    assert first_readable([*commits, both[0]]) == (4, True)
    # Commits that are not followed by all later ones are no use.
    assert first_readable([name(0), *commits, both[1]]) == (4, True)


def test_iceberg_s_history_is_that_of_the_current_snapshot() -> None:
    snapshots = {
        11: Ancestor(None, None),
        12: Ancestor(11, 20),
        13: Ancestor(11, 30),  # rolled back
        14: Ancestor(12, None),
    }
    history = ancestors(snapshots, 14, published=12, published_us=20)
    assert history == History([Commit(11), Commit(12, 20), Commit(14)], is_whole=True)
    assert ancestors({}, None, None, None) == History([], is_whole=True)


def test_what_iceberg_s_oldest_snapshot_holds_may_be_known_from_the_publication_only() -> None:
    # The merge of 20 is expired, and compacted snapshots remain.
    expired = {14: Ancestor(13, None), 15: Ancestor(14, None), 16: Ancestor(15, 40)}
    published_late = ancestors(expired, 15, published=13, published_us=25)
    assert at(published_late.commits, 30, is_whole=published_late.is_whole) == 15
    published = ancestors(expired, 16, published=15, published_us=25)
    assert not published.is_whole
    assert at(published.commits, 30, is_whole=False) == 15
    with pytest.raises(AsOfTimeError, match=r"00\.000025Z"):
        at(published.commits, 20, is_whole=False)
