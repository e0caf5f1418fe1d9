"""Folding an epoch's changes of a row gives what a plain model gives."""

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import columns_by_table, latest_changes
from tests.support.epoch_rows import frame

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
KEYS = 300
VALUES = (None, "1", "-7", "9223372036854775807")
NAMES = ("A", "B", "C")


def column_types(names: tuple[str, ...]) -> list[dict[str, Any]]:
    listed = [("Id", True), *((name, False) for name in names)]
    return [
        {
            "name": name,
            "type": '{"code":"INT64"}',
            "is_primary_key": is_key,
            "ordinal_position": ["Id", *NAMES].index(name) + 1,
        }
        for name, is_key in listed
    ]


def record(place: int, key: int, mod_type: str, capture: str, values: dict[str, Any]) -> Any:
    return (
        # Several changes of a transaction share their commit timestamp.
        START + timedelta(microseconds=place // 3),
        f"t{place // 3}",
        f"{place % 3:08d}",
        True,
        "T",
        column_types(tuple(sorted(values))),
        [
            {
                "keys": json.dumps({"Id": str(key)}),
                "new_values": json.dumps(values),
                "old_values": "{}",
            }
        ],
        mod_type,
        capture,
        1,
        1,
        "",
        False,
        "p",
        START,
    )


def history(rng: random.Random, key: int, capture: str) -> tuple[list[Any], dict[str, Any]]:
    """Make records of one row in a random but possible order, and the state they lead to."""
    is_there = rng.random() < 0.5
    state: dict[str, Any] = {"deleted": False, "whole": False, "changed_columns": {}}
    records = []
    for place in sorted(rng.sample(range(60), rng.randint(1, 6))):
        everything = {name: rng.choice(VALUES) for name in NAMES}
        kind = ("UPDATE" if rng.random() < 0.7 else "DELETE") if is_there else "INSERT"
        if kind == "DELETE":
            values = {}
            state = {"deleted": True, "whole": True, "changed_columns": {}}
        elif kind == "INSERT" or capture.startswith("NEW_ROW"):
            values = everything
            state = {"deleted": False, "whole": True, "changed_columns": values}
        else:
            names = rng.sample(NAMES, rng.randint(1, 3))
            values = {name: everything[name] for name in names}
            state = {
                **state,
                "deleted": False,
                "changed_columns": state["changed_columns"] | values,
            }
        is_there = kind != "DELETE"
        records.append(record(place, key, kind, capture, values))
    return records, state


def test_the_latest_changes_are_what_a_plain_model_says(session: SparkSession) -> None:
    rng = random.Random(11)
    made = [history(rng, key, CAPTURES[key % 4]) for key in range(KEYS)]
    records = [record for records, _ in made for record in records]
    rng.shuffle(records)
    changes = frame(session, records)
    columns_found = columns_by_table(changes)
    columns = tuple(Column(name, "INT64", name == "Id") for name in ("Id", *NAMES))
    assert columns_found == {"T": columns}
    rows = latest_changes(changes, "T", columns).collect()
    assert len(rows) == KEYS
    for row in rows:
        key = row["row"]["Id"]
        last = max(made[key][0], key=lambda r: (r[0], r[2]))
        expected = made[key][1]
        assert {name: row[name] for name in ("deleted", "whole", "changed_columns")} == expected
        assert row["commit_timestamp"].astimezone(UTC) == last[0]
        values = {name: row["row"][name] for name in NAMES}
        texts = expected["changed_columns"]
        assert values == {
            name: None if texts.get(name) is None else int(texts[name]) for name in NAMES
        }
    states = [state for _, state in made]
    assert {(s["deleted"], s["whole"]) for s in states} == {
        (True, True),
        (False, True),
        (False, False),
    }


def test_values_of_all_types_come_through(session: SparkSession) -> None:
    types = {
        "Id": ('{"code":"INT64"}', "1", 1),
        "B": ('{"code":"BOOL"}', True, True),
        "F": ('{"code":"FLOAT64"}', "-Infinity", float("-inf")),
        "G": ('{"code":"FLOAT64"}', 1e300, 1e300),
        "N": ('{"code":"NUMERIC"}', "9" * 29 + "." + "9" * 9, Decimal("9" * 29 + "." + "9" * 9)),
        "P": ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', "NaN", "NaN"),
        "D": ('{"code":"DATE"}', "0001-01-01", date(1, 1, 1)),
        "Y": ('{"code":"BYTES"}', "cGFpZA==", bytearray(b"paid")),
        "J": ('{"code":"JSON"}', '{"a": [1.50, null]}', '{"a": [1.50, null]}'),
        "U": ('{"code":"UUID"}', "9f6c", "9f6c"),
        "A": (
            '{"array_element_type":{"code":"BYTES"},"code":"ARRAY"}',
            ["cGFpZA==", None],
            [bytearray(b"paid"), None],
        ),
        "V": ('{"array_element_type":{"code":"FLOAT32"},"code":"ARRAY"}', [0.5, 1], [0.5, 1.0]),
        "X": ('{"code":"STRUCT"}', {"new": [1]}, '{"new":[1]}'),
    }
    columns = [
        {"name": name, "type": kind, "is_primary_key": name == "Id", "ordinal_position": i}
        for i, (name, (kind, _, _)) in enumerate(types.items())
    ]
    values = {name: value for name, (_, value, _) in types.items() if name != "Id"}
    one = list(record(0, 1, "INSERT", "NEW_ROW", {}))
    one[5] = columns
    one[6] = [{"keys": '{"Id":"1"}', "new_values": json.dumps(values), "old_values": "{}"}]
    changes = frame(session, [tuple(one)])
    (row,) = latest_changes(changes, "T", columns_by_table(changes)["T"]).collect()
    expected = {name: value for name, (_, _, value) in types.items()}
    assert row["row"].asDict() == expected
