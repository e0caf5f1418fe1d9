"""The case of apache/beam issue 40232: a query ends with OK and keeps its partition's end back."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import Dialect
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.read_options import Proof
from slackwater.testing.compare import compare
from slackwater.timestamp import HALF_MICROSECOND_NS
from tests.faults.proxy import FaultProxy, HideEnds
from tests.faults.seeded import Sample, last_ns, make_sample
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop

# On a slow machine a child's first record comes seconds after its parent's end.
MARGIN_NS = 60 * 10**9


def cuts_after_ends(sample: Sample, folder: Path) -> list[int]:
    """Epoch ends that each lie just after a partition's end and its children's first record.

    None lies between the two: the end would be hidden from that epoch, and not from this one.
    """
    loop = EpochLoop(
        sample.stream, f"sqlite:///{folder / 'plain.db'}", start_ns=sample.start_ns, options={}
    )
    output = pa.concat_tables(loop.epochs(last_ns(sample)))
    partitions = loop.store.partitions("orders")
    loop.close()
    commits = sorted(
        zip(
            (us * 1_000 for us in output["commit_timestamp"].cast("int64").to_pylist()),
            output["partition_token"].to_pylist(),
            strict=True,
        )
    )
    cuts: list[int] = []
    for end_ns, token in sorted((p.end_timestamp_ns or 0, p.token) for p in partitions):
        children = {p.token for p in partitions if token in p.parents}
        first_ns = next((ns for ns, of in commits if of in children and ns >= end_ns), None)
        if first_ns is not None and end_ns > (cuts[-1] if cuts else 0):
            cuts.append(watermark_for_end(first_ns))
    return cuts


@pytest.mark.parametrize("proof", list(Proof), ids=str)
def test_nothing_is_lost_and_nothing_is_late_with_strict_proof(
    proof: Proof, new_database: NewDatabase, tmp_path: Path
) -> None:
    sample = make_sample(new_database(), Dialect.GOOGLE_STANDARD_SQL)
    cuts = [*cuts_after_ends(sample, tmp_path), last_ns(sample) + HALF_MICROSECOND_NS]
    with FaultProxy(sample.stream.endpoint.target, [HideEnds(MARGIN_NS)]) as proxy:
        loop = EpochLoop(
            replace(sample.stream, endpoint=plaintext(proxy.host)),
            f"sqlite:///{tmp_path / 'state.db'}",
            start_ns=sample.start_ns,
            options={"proof": proof.value},
        )
        epochs = [loop.epoch(end_ns=cut) for cut in cuts]
        hidden = proxy.injected["hidden end"]
        loop.close()
    assert compare(pa.concat_tables(epochs), sample.truth).is_equal
    late = [
        ns
        for former_ns, epoch in zip(cuts, epochs[1:], strict=False)
        for us in epoch["commit_timestamp"].cast("int64").to_pylist()
        if (ns := us * 1_000) <= former_ns
    ]
    assert loop.late_records == len(late)
    if proof is Proof.RECORD:
        assert hidden == 0, "a query without an end_timestamp has no artificial end"
        assert late == []
    else:
        assert hidden > 0
        assert late, "no end was hidden from an epoch that its children had records in"
