"""The lineage of partitions as a graph in Graphviz's language, and as SVG if dot is installed."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from slackwater.printing import in_one_line
from slackwater.scheduler.lineage import PartitionState, states
from slackwater.state.models import Partition
from slackwater.timestamp import ns_to_seconds

GRAPHVIZ_HINT: Final = (
    "To draw it, install Graphviz (apt-get install graphviz, or brew install graphviz) and run"
    " dot -Tsvg"
)
_COLOURS: Final = {
    PartitionState.FINISHED: "#d9d9d9",
    PartitionState.RUNNING: "#a6dba0",
    PartitionState.WAITING: "#fdb863",
}


def to_dot(partitions: Sequence[Partition], *, low_watermark_ns: int | None) -> str:
    """Return a digraph from parents to children; times are seconds after the earliest start.

    Args:
        partitions: in any order; the same partitions always give the same text.
        low_watermark_ns: decides which are finished, running and waiting; None takes the last end.
    """
    ordered = sorted(partitions, key=lambda p: (p.start_timestamp_ns, p.label))
    ends = [p.end_timestamp_ns for p in ordered if p.end_timestamp_ns is not None]
    state_of = states(ordered, low_watermark_ns or max(ends, default=0))
    names = _short_names([p.label for p in ordered])
    origin_ns = ordered[0].start_timestamp_ns if ordered else 0
    lines = [
        "digraph lineage {",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];',
    ]
    for p in ordered:
        label = f"{_escaped(names[p.label])}\\n{_span(p, origin_ns)}"
        lines.append(
            f'  "{_escaped(p.label)}" [label="{label}", fillcolor="{_COLOURS[state_of[p.label]]}",'
            f' tooltip="{state_of[p.label]}"];'
        )
    lines += [
        f'  "{_escaped(parent)}" -> "{_escaped(p.label)}";'
        for p in ordered
        for parent in sorted(p.parents & names.keys())
    ]
    return "\n".join([*lines, "}", ""])


def render_svg(dot: str) -> bytes | None:
    """Return the drawing as SVG, or None if Graphviz's dot is not installed."""
    program = shutil.which("dot")
    if program is None:
        return None
    drawn = subprocess.run(  # noqa: S603 - Graphviz, on our own text
        [program, "-Tsvg"], input=dot.encode(), capture_output=True, check=True, timeout=60
    )
    return drawn.stdout


def _short_names(tokens: Sequence[str]) -> dict[str, str]:
    """Return for each token its shortest unambiguous prefix, of 6 characters or more."""
    length = 6
    longest = max(map(len, tokens), default=0)
    while length < longest and len({token[:length] for token in tokens}) < len(set(tokens)):
        length += 1
    return {token: token[:length] for token in tokens}


def _span(partition: Partition, origin_ns: int) -> str:
    def seconds(timestamp_ns: int) -> str:
        return f"{ns_to_seconds(timestamp_ns - origin_ns):.1f}"

    end = partition.end_timestamp_ns
    return f"{seconds(partition.start_timestamp_ns)} s to {'...' if end is None else seconds(end)}"


def _escaped(text: str) -> str:
    return in_one_line(text).replace("\\", "\\\\").replace('"', '\\"')
