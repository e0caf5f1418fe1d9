"""Typed changelogs read by libraries other than Spark, and the truth in the same form."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from slackwater.testing.plain_client import TruthRecord
from slackwater.timestamp import datetime_to_ns, ns_to_us, parse_rfc3339
from tests.support.read_tables import rows_in
from tests.support.table_rows import comparable

Change = tuple[Any, ...]
PARTS = ("before", "after")
_TIME = re.compile(r"\d{1,4}-\d\d-\d\dT\S+Z")


def written_changes(folder: Path) -> Counter[Change]:
    """Return the changes in all typed changelogs of a folder."""
    tables = [path for path in folder.iterdir() if not path.name.startswith("_")]
    return Counter(change_in(path.name, row) for path in tables for row in rows_in(path))


def expected_changes(records: Iterable[TruthRecord]) -> Counter[Change]:
    """Return the changes of data change records."""
    return Counter(
        _expected(record, number) for record in records for number in range(len(record.mods))
    )


def change_in(table: str, row: Mapping[str, Any]) -> Change:
    """Return the change in a row of typed columns."""
    key = row["key"]
    before_and_after = []
    for part in PARTS:
        values, changed_names = row[part], row["given"][part]
        if values is not None:
            # What is not said is NULL.
            others = values.keys() - key.keys() - set(changed_names)
            assert all(values[name] is None for name in others), row
            values = {name: values[name] for name in (*key, *changed_names)}
        before_and_after.append(plain(values))
    return (
        f"{row['commit_timestamp'].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        *(row["server_transaction_id"], row["record_sequence"], row["mod_number"], table),
        *(plain(key), *before_and_after),
    )


def _expected(record: TruthRecord, number: int) -> Change:
    keys, new, old = (json.loads(text, parse_float=Decimal) or {} for text in record.mods[number])
    # An INSERT has no old row, a DELETE no new one. Without old values, the old row has the key.
    before = None if record.mod_type == "INSERT" else {**keys, **old}
    after = None if record.mod_type == "DELETE" else {**keys, **new}
    return (
        record.commit_timestamp,
        *(record.server_transaction_id, record.record_sequence, number, record.table_name),
        *(plain(keys), plain(before), plain(after)),
    )


def plain(value: Any) -> Any:
    """Return a value in a form that is the same for typed values and for Spanner's JSON."""
    if isinstance(value, Mapping):
        return tuple((name, plain(value[name])) for name in sorted(value))
    if isinstance(value, list):
        return tuple(map(plain, value))
    if isinstance(value, datetime):
        return ns_to_us(datetime_to_ns(value))
    if isinstance(value, date):
        return str(value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        return ns_to_us(parse_rfc3339(value))
    if isinstance(value, str) and value.removeprefix("-").replace(".", "", 1).isdecimal():
        value = Decimal(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        value = Decimal(value)
    made = comparable(value)
    return f"{made:f}" if isinstance(made, Decimal) else made
