"""A mirror that lost its table gets it back in chunks, between epochs that change it."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.sink import Chunk
from slackwater.spark_sink.sinks.former_rows import DeletePolicy
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.sql.key_ranges import SortOrder, range_condition
from slackwater.spark_sink.sql.types import nanoseconds_expression, value_expression
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.rescans import mirror_corrections
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import on_disk
from tests.support.merge_epochs import FoldedBySpark
from tests.support.mirror_epochs import Epochs
from tests.support.mirror_looks import current, mirrored_rows

COLUMNS = (
    Column("Id", "INT64", is_key=True),
    Column("A", "STRING(MAX)", is_key=False),
    Column("B", "BOOL", is_key=False),
)


class Table:
    """A table in Spanner that changes, and a mirror that has missed some of it."""

    def __init__(self, epochs: Epochs, seed: int) -> None:
        self._epochs = epochs
        self._random = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}

    def change(self, count: int, ids: range) -> None:
        """Change rows; the next epoch has these changes."""
        for _ in range(count):
            number = self._random.choice(ids)
            values = {"A": self._random.choice([None, "a", "é"]), "B": self._random.random() < 0.5}
            if number not in self.rows:
                self._epochs.change("INSERT", str(number), **values)
                self.rows[number] = values
            elif self._random.random() < 0.3:
                self._epochs.change("DELETE", str(number))
                del self.rows[number]
            else:
                name = self._random.choice(["A", "B"])
                self._epochs.change("UPDATE", str(number), **{name: values[name]})
                self.rows[number] |= {name: values[name]}

    def chunk(self, after: Sequence[Any] | None, count: int) -> Chunk:
        """Return rows behind a key, as of the last epoch."""
        behind = [n for n in sorted(self.rows) if after is None or n > int(after[0])]
        here = behind[:count]
        rows = [{"Id": str(number), **self.rows[number]} for number in here]
        through = [str(here[-1])] if len(behind) > count else None
        at = self._epochs.last_low_watermark
        return Chunk("T", COLUMNS, ("Id",), frozenset(), rows, after, through, at)


@pytest.mark.parametrize(
    ("table_format", "folded_by", "deletes"),
    [
        (Delta(), Mirrors, "mark"),
        (Iceberg(), FoldedBySpark, "apply"),
        *(
            pytest.param(table_format, folded_by, deletes, marks=pytest.mark.long)
            for table_format, folded_by, deletes in (
                (Delta(), Mirrors, "apply"),
                (Delta(), FoldedBySpark, "apply"),
                (Delta(), FoldedBySpark, "mark"),
                (Iceberg(), Mirrors, "apply"),
                (Iceberg(), Mirrors, "mark"),
                (Iceberg(), FoldedBySpark, "mark"),
            )
        ),
    ],
    ids=lambda value: getattr(value, "using", None) or getattr(value, "__name__", value),
)
def test_a_mirror_that_lost_its_table_is_corrected_in_chunks(
    session: SparkSession,
    tmp_path: Path,
    table_format: TableFormat,
    folded_by: type[Mirrors],
    deletes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_corrections, "_WRONG_ROWS_MAX", 2)
    delete_policy = DeletePolicy(deletes == "mark")
    sink = folded_by(on_disk(tmp_path), "orders", table_format, delete_policy=delete_policy)
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING", "B": "BOOL"})
    table = Table(epochs, seed=5)
    table.change(60, range(60))
    epochs.write()
    # The mirror has rows that vanished, lacks some, and others have different values.
    for number in (3, 30, 59):
        table.rows.pop(number, None)
    for number in (4, 33, 70):
        table.rows[number] = {"A": "lost", "B": None}
    after: Sequence[Any] | None = None
    corrected = rounds = 0
    while True:
        rounds += 1
        assert rounds < 30, "it is never equal"
        chunk = table.chunk(after, 20)
        result = sink.take_chunk(session, chunk)
        corrected += result.corrected
        assert result.corrected <= 2
        if result.is_done:
            after = chunk.through
            if after is None:
                break
        # One epoch in three changes nothing.
        if rounds % 3:
            table.change(6, range(80))
        epochs.write(times=1 + rounds % 2)
    assert corrected >= 2
    there, _ = mirrored_rows(current(tmp_path / "T"))
    expected = [{"Id": number, **values} for number, values in table.rows.items()]
    assert sorted(there, key=lambda row: row["Id"]) == sorted(expected, key=lambda row: row["Id"])


VALUES: Mapping[str, Sequence[Any]] = {
    "INT64": [None, "-5", "0", "10", "9"],
    "FLOAT64": [None, "NaN", "-Infinity", -1.5, 0.5, "Infinity"],
    "STRING": [None, "", "B", "a", "aa", "é", "\U0001f600"],
    "TIMESTAMP": [
        None,
        "2026-01-31T09:00:00.123456001Z",
        "2026-01-31T09:00:00.123456002Z",
        "2026-01-31T09:00:00.123457Z",
    ],
    "BOOL": [None, False, True],
}


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("spanner_type", VALUES)
def test_a_range_of_keys_is_that_of_spanner(
    session: SparkSession, spanner_type: str, is_descending: bool
) -> None:
    """The values above are in Spanner's ascending order, but for numbers that sort as texts."""
    ordered = list(VALUES[spanner_type])
    if spanner_type == "INT64":
        ordered = [None, "-5", "0", "9", "10"]
    keys = [(value, n) for value in (ordered[::-1] if is_descending else ordered) for n in (1, 2)]
    descending = frozenset({"K"} if is_descending else ())
    columns = mirror_columns(
        [Column("K", spanner_type, is_key=True), Column("N", "INT64", is_key=True)]
    )
    order = SortOrder.of(columns, ("K", "N"), descending)
    texts = [
        None if value is None else value if isinstance(value, str) else json.dumps(value)
        for value, _ in keys
    ]
    rows = session.createDataFrame(
        [(place, text, n) for place, (text, (_, n)) in enumerate(zip(texts, keys, strict=True))],
        "place INT, text STRING, N BIGINT",
    )
    nanoseconds = f"{nanoseconds_expression('text')} AS _K_nanoseconds"
    more = [nanoseconds] if spanner_type == "TIMESTAMP" else []
    rows = rows.selectExpr(
        "place", "N", f"{value_expression('text', spanner_type)} AS K", *more
    ).localCheckpoint()
    conditions = []
    last = len(keys) - 1
    for key in range(last):
        for start, end in ((0, key), (key, key), (key, key + 1), (key, last)):
            limits = [{"K": value, "N": str(n)} for value, n in (keys[start], keys[end])]
            conditions.append((start, end, range_condition(order, limits[0], limits[1])))
    chosen = rows.selectExpr(
        "place", *(f"({condition}) AS c{n}" for n, (*_, condition) in enumerate(conditions))
    ).collect()
    for n, (start, end, _) in enumerate(conditions):
        places = sorted(row["place"] for row in chosen if row[f"c{n}"])
        assert places == list(range(start + 1, end + 1)), (keys[start], keys[end])
    everything = rows.where(range_condition(order, None, None)).count()
    assert everything == len(keys)
