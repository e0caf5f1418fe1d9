"""Statistics of Parquet files in Delta's log: readers skip files by them."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.spark_sink.output.parquet_stats import stats_text

AT = datetime(2026, 1, 31, 9, 0, 0, 123_456, tzinfo=UTC)


def stats(**columns: pa.Array) -> dict[str, object]:
    sink = pa.BufferOutputStream()
    # Two row groups, of which the second has the bounds' other halves.
    pq.write_table(pa.table(columns), sink, row_group_size=2)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    read: dict[str, object] = json.loads(stats_text(footer))
    return read


def test_times_integers_and_short_texts_have_bounds() -> None:
    assert stats(
        at=pa.array([AT, None, AT], pa.timestamp("us", tz="UTC")),
        number=pa.array([3, 1, 2]),
        # In the order of their bytes in UTF-8, as Delta's readers compare them.
        text=pa.array(["é", None, "z"]),
    ) == {
        "numRecords": 3,
        "minValues": {"at": "2026-01-31T09:00:00.123456Z", "number": 1, "text": "z"},
        "maxValues": {"at": "2026-01-31T09:00:00.123456Z", "number": 3, "text": "é"},
        "nullCount": {"at": 1, "number": 0, "text": 1},
    }


def test_long_texts_and_floating_point_numbers_have_none() -> None:
    long = stats(short=pa.array(["a" * 32]), long=pa.array(["a" * 33]), number=pa.array([1.5]))
    assert long["minValues"] == {"short": "a" * 32}
    assert stats(text=pa.array([None, None], pa.string()))["minValues"] == {}
