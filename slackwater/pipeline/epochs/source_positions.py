"""The source's positions on their way into the output's commit, where they outlive the store."""

from slackwater.spark_sink.sink import KeepsPositions
from slackwater.state.models import Plan
from slackwater.state.positions import positions_text
from slackwater.state.store import Store


class SourcePositions:
    """An EpochWatch that gives the sink the positions that an epoch's tasks have left.

    Args:
        store: the metadata store, in which they were sealed.
        sink: names them in its commit.
    """

    def __init__(self, store: Store, sink: KeepsPositions) -> None:
        self._store = store
        self._sink = sink

    def inspect(self, plan: Plan) -> None:
        """Hand the positions of the epoch's plan over; see EpochWatch.

        Raises:
            StoreBehindError: the store went back since the audit.
        """
        self._sink.keep_positions(plan.plan_id, positions_text(self._store, plan))

    def published(self, end_ns: int) -> None:
        """Do nothing: the commit has them."""
