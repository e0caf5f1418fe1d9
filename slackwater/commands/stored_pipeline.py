"""Opens the metadata store and looks a pipeline up in it, without a connection to Spanner."""

from __future__ import annotations

from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.state.models import Pipeline
from slackwater.state.store import Store


def open_pipeline(settings: Settings) -> tuple[Store, Pipeline]:
    """Open the store and return it with its row of the pipeline.

    Raises:
        SettingsError: the store does not know the pipeline.
        StateError: the store can't be opened.
    """
    store = Store.open(settings.state.url, migrate=False)
    pipeline = store.pipeline(settings.pipeline)
    if pipeline is None:
        names = ", ".join(p.name for p in store.pipelines()) or "none"
        store.close()
        raise SettingsError(
            f"the metadata store {store.url} has no pipeline {settings.pipeline!r}.",
            f"It has: {names}",
        )
    return store, pipeline
