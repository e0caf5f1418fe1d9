"""The source's positions on their way into the output's commit, where they outlive the store."""

from slackwater.spark_sink.sink import KeepsPositions
from slackwater.state.errors import StoreBehindError
from slackwater.state.plans import latest_plan
from slackwater.state.positions import positions_text
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339


class SourcePositions:
    """An EpochWatch that gives the sink the positions that an epoch's tasks have left.

    Args:
        pipeline: its name.
        store: the metadata store, in which they were sealed.
        sink: names them in its commit.
    """

    def __init__(self, pipeline: str, store: Store, sink: KeepsPositions) -> None:
        self._pipeline = pipeline
        self._store = store
        self._sink = sink

    def inspect(self, start_ns: int, end_ns: int) -> None:  # noqa: ARG002
        """Hand the positions of the epoch's plan over; see EpochWatch.

        Raises:
            StoreBehindError: the store went back since the audit.
        """
        plan = latest_plan(self._store, self._pipeline)
        if plan is None or plan.end_ns != end_ns:
            raise StoreBehindError(
                f"the metadata store no longer has the plan of pipeline {self._pipeline!r} for"
                f" {format_rfc3339(end_ns)}.",
                "The epoch is planned again",
            )
        self._sink.keep_positions(plan.plan_id, positions_text(self._store, plan.plan_id))

    def published(self, end_ns: int) -> None:
        """Do nothing: the commit has them."""
