"""A pipeline's row in the metadata store, looked up without a connection to Spanner."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from slackwater.config.settings import Settings
from slackwater.errors import PipelineNotStartedError
from slackwater.state.errors import StoreMissingError
from slackwater.state.models import Pipeline
from slackwater.state.store import Store


@contextmanager
def open_pipeline(settings: Settings) -> Iterator[tuple[Store, Pipeline]]:
    """Open the store, and close it at the end; yield it with its row of the pipeline.

    Raises:
        PipelineNotStartedError: the store does not know the pipeline, or does not exist.
        StateError: the store can't be opened.
    """
    not_started = f"pipeline {settings.pipeline!r} has not started yet"
    try:
        store = Store.open(settings.state.url, migrate=False)
    except StoreMissingError as error:
        raise PipelineNotStartedError(
            f"{not_started}: {error.message}",
            "`slackwater run` starts it. If it has run before, look at state.url",
        ) from error
    with closing(store):
        pipeline = store.pipeline(settings.pipeline)
        if pipeline is None:
            names = ", ".join(p.name for p in store.pipelines()) or "none"
            raise PipelineNotStartedError(
                f"{not_started}: it is not in the metadata store {store.url}.",
                f"`slackwater run` starts it. The store has: {names}",
            )
        yield store, pipeline
