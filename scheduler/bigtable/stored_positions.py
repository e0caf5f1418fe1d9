"""The positions of a pipeline in the metadata store, without Bigtable's client."""

from slackwater.reader.bigtable.positions import Position, from_text
from slackwater.state.positions import read_positions
from slackwater.state.store import Store


def positions_of(
    store: Store, pipeline: str, low_watermark_ns: int | None = None
) -> list[Position]:
    """Return the positions of a pipeline; none if its source is not Bigtable.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        low_watermark_ns: only those at this low watermark; None for the present ones.

    Raises:
        StateError: the store can't be reached.
    """
    texts = read_positions(store, pipeline, low_watermark_ns)
    return [position for text in texts for position in from_text(text)]
