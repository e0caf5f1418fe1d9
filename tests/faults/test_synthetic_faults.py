"""Thousands of records in large messages, broken off anywhere: every record once, by column."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from tenacity import wait_random_exponential

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.decode.googlesql_columns import Columns, decode_columns
from slackwater.reader.decode.result_layout import Layout
from tests.faults.proxy import Breaks, FaultProxy
from tests.support.epochs import EpochLoop
from tests.synthetic.rows import PatternRows
from tests.synthetic.script import Script, ScriptedPartition, lineage
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner

START_US = 1_769_850_000_000_000
SPAN_US = 3_000_000
EVERY_US = 1_000
PER_TRANSACTION = 3


def script(dialect: Dialect, rows_per_message: int) -> Script:
    changes = [START_US + SPAN_US // 3, START_US + 2 * SPAN_US // 3]
    partitions = []
    for number, p in enumerate(lineage(3, START_US - 1_000_000, changes, seed=3)):
        begin_us, end_us = max(p.start_us, START_US), p.end_us or START_US + SPAN_US
        transactions = (end_us - begin_us) // EVERY_US
        rows = PatternRows(
            number, begin_us, EVERY_US, transactions, PER_TRANSACTION, dialect=dialect
        )
        partitions.append(ScriptedPartition(p.token, p.start_us, p.end_us, p.parents, rows))
    return Script(dialect, tuple(partitions), rows_per_message)


@pytest.mark.parametrize(
    ("dialect", "rows_per_message"),
    [(Dialect.GOOGLE_STANDARD_SQL, 1), (Dialect.GOOGLE_STANDARD_SQL, 50), (Dialect.POSTGRESQL, 50)],
    ids=str,
)
def test_broken_queries_are_resumed_in_the_middle_of_a_transaction(
    dialect: Dialect, rows_per_message: int, tmp_path: Path
) -> None:
    history = script(dialect, rows_per_message)
    breaks = Breaks(0.7, messages_max=2_000 // rows_per_message)
    by_column = Counter[str]()

    def counted(messages: Sequence[bytes], layout: Layout) -> Columns:
        decoded = decode_columns(messages, layout)
        by_column["rows"] += decoded.batch.num_rows
        return decoded

    with (
        SyntheticSpanner(history) as server,
        FaultProxy(server.host, [breaks], seed=2) as proxy,
        patch("slackwater.reader.query.reopened_query._WAIT", wait_random_exponential(0.01, 0.1)),
        patch("slackwater.reader.query.batch_decoder.decode_columns", counted),
    ):
        stream = ChangeStream(
            "test-project", "test", "db", CHANGE_STREAM, endpoint=plaintext(proxy.host)
        )
        loop = EpochLoop(
            stream,
            f"sqlite:///{tmp_path / 'state.db'}",
            start_ns=START_US * 1_000,
            options={"max_span": "2s"},
        )
        output = pa.concat_tables(loop.epochs((START_US + SPAN_US) * 1_000))
        loop.close()
    columns = ("partition_token", "server_transaction_id", "record_sequence")
    keys = list(zip(*(output[name].to_pylist() for name in columns), strict=True))
    assert len(set(keys)) == len(keys), "a record came twice"
    assert Counter(token for token, _, _ in keys) == {
        p.token: len(p.rows) for p in history.partitions
    }
    assert sum(proxy.injected.values()) > 5
    if dialect is Dialect.GOOGLE_STANDARD_SQL:
        assert by_column["rows"] > len(keys) / 2
