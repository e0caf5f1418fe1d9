"""The comparison with the truth finds what it is there to find."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from slackwater.testing.compare import compare, cut_violations
from slackwater.testing.plain_client import TruthRecord

START = datetime(2026, 1, 31, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def row(
    commit_s: int, watermark_s: float, *, token: str = "a", records: int = 1, partitions: int = 1
) -> dict[str, Any]:
    return {
        "commit_timestamp": at(commit_s),
        "low_watermark": at(watermark_s),
        "server_transaction_id": f"t{commit_s}",
        "record_sequence": f"{token}0",
        "table_name": "Orders",
        "partition_token": token,
        "mods": [{"keys": '{"Id":"1"}', "new_values": None, "old_values": "{}"}],
        "mod_type": "UPDATE",
        "number_of_records_in_transaction": records,
        "number_of_partitions_in_transaction": partitions,
    }


def truth(commit_s: int, token: str = "a", new_values: str = "null") -> TruthRecord:
    return TruthRecord(
        f"{at(commit_s):%Y-%m-%dT%H:%M:%S.%f}Z",
        f"t{commit_s}",
        f"{token}0",
        "Orders",
        (('{"Id": "1"}', new_values, "{}"),),
        "UPDATE",
    )


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows))


def test_the_same_records_in_any_order_are_equal() -> None:
    comparison = compare(table(row(2, 3), row(1, 3)), [truth(1), truth(2)])
    assert comparison.is_equal
    assert comparison.equal == 2


def test_missing_unexpected_and_doubled_records_are_told_apart() -> None:
    output = table(row(1, 5), row(2, 5), row(2, 5), row(4, 5))
    comparison = compare(output, [truth(1), truth(2), truth(3)])
    assert comparison.missing == [truth(3)]
    assert comparison.unexpected == [truth(4)]
    assert comparison.doubled == [truth(2)]
    assert comparison.equal == 1
    assert not comparison.is_equal


def test_a_record_with_other_values_is_missing_and_unexpected() -> None:
    comparison = compare(table(row(1, 5)), [truth(1, new_values="{}")])
    assert comparison.missing == [truth(1, new_values="{}")]
    assert comparison.unexpected == [truth(1)]


def test_whole_transactions_between_their_low_watermarks_are_cuts() -> None:
    whole = (
        row(5, 6, token="a", records=2, partitions=2),
        row(5, 6, token="b", records=2, partitions=2),
    )
    assert cut_violations(table(row(1, 3), row(2, 3), *whole)) == []


def test_a_record_outside_its_epoch_is_a_violation() -> None:
    (after,) = cut_violations(table(row(4, 3)))
    assert "holds a record of" in after
    (before,) = cut_violations(table(row(2, 3), row(1, 6)))
    assert "before the previous" in before


def test_a_transaction_that_is_not_whole_in_one_epoch_is_a_violation() -> None:
    (lost,) = cut_violations(table(row(1, 3, records=2)))
    assert "t1 is incomplete: (1, 1, 1) instead of (1, 2, 1)" in lost
    split = cut_violations(table(row(1, 3, records=2), row(1, 6, token="a", records=2)))
    assert any("is incomplete: (2, 2, 1)" in text for text in split)
