"""A replay after a failed audit gets past an end that Spanner hides in the same way each time."""

from pathlib import Path

import pytest

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.records import DataChangeRecord
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.errors import AuditError
from tests.faults.proxy import FaultProxy, HideEnds
from tests.support.epochs import EpochLoop
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner

START_US = 1_769_850_000_000_000
END_US = START_US + 1_000_000
DIALECT = Dialect.GOOGLE_STANDARD_SQL


def shared(time_us: int) -> ListedRows:
    """A record of a transaction that has one record in each of two partitions."""
    record = DataChangeRecord(
        time_us * 1_000,
        f"t{time_us}",
        "00000000",
        True,
        "T",
        (),
        (),
        "INSERT",
        "NEW_ROW",
        2,
        2,
        "",
        False,
    )
    return ListedRows((record,), DIALECT)


def test_a_cut_whose_audit_failed_is_read_with_the_strict_proof(tmp_path: Path) -> None:
    history = Script(
        DIALECT,
        (
            ScriptedPartition("parent", START_US - 1_000_000, END_US),
            ScriptedPartition("child", END_US, None, ("parent",), shared(END_US + 10)),
            ScriptedPartition("other", START_US - 1_000_000, None, (), shared(END_US + 10)),
        ),
    )
    always = HideEnds(margin_ns=10**9, times=1_000)
    with SyntheticSpanner(history) as server, FaultProxy(server.host, [always]) as proxy:
        stream = ChangeStream(
            "test-project", "test", "db", CHANGE_STREAM, endpoint=plaintext(proxy.host)
        )
        loop = EpochLoop(stream, f"sqlite:///{tmp_path / 'state.db'}", start_ns=START_US * 1_000)
        cut_ns = watermark_for_end((END_US + 20) * 1_000)
        with pytest.raises(AuditError, match="1 record"):
            loop.epoch(end_ns=cut_ns)
        epoch = loop.epoch()
        loop.close()
    assert sorted(epoch["partition_token"].to_pylist()) == ["child", "other"]
    assert loop.watermark_ns == cut_ns
    assert loop.late_records == 0
    assert proxy.injected["hidden end"] == 1
