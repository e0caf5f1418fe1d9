"""What the metadata store keeps of an initial scan, on SQLite, on PostgreSQL and on Spanner."""

from dataclasses import replace

import pytest

from slackwater.state.errors import ScanIncompleteError
from slackwater.state.models import Scan, ScanPart
from slackwater.state.scans import begin_scan, finish_chunk, finish_scan, read_scan
from slackwater.state.store import Store

SCAN = Scan("orders", 1_500, "sessions/s", b"\x00\xff", '{"T": [{"Id": "INT64"}, ["Id"]]}')
PARTS = [ScanPart(n, n // 2, "T", bytes([n, 255])) for n in range(5)]


def test_a_scan_goes_on_after_the_chunks_that_are_done(store: Store) -> None:
    assert read_scan(store, "orders") is None
    begin_scan(store, SCAN, PARTS)
    assert read_scan(store, "orders") == (SCAN, PARTS)
    finish_chunk(store, "orders", 0, records=7)
    # A crash may have come between this note and its answer.
    finish_chunk(store, "orders", 0, records=7)
    finish_chunk(store, "orders", 2, records=3)
    done = [replace(part, is_done=part.chunk != 1) for part in PARTS]
    assert read_scan(store, "orders") == (replace(SCAN, records=10), done)
    with pytest.raises(ScanIncompleteError, match="2 parts"):
        finish_scan(store, "orders")
    assert read_scan(store, "orders") == (replace(SCAN, records=10), done)
    finish_chunk(store, "orders", 1, records=0)
    finish_scan(store, "orders")
    found = read_scan(store, "orders")
    assert found is not None
    assert found[0] == replace(SCAN, records=10, is_done=True)
    assert read_scan(store, "other") is None


def test_a_scan_of_no_tables_has_no_parts(store: Store) -> None:
    begin_scan(store, SCAN, [])
    assert read_scan(store, "orders") == (SCAN, [])
