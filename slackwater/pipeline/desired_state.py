"""What is desired of a pipeline: by its operator, in the metadata store, or by a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final, Protocol

import structlog

from slackwater.pipeline.transitions import ends_run, may_begin
from slackwater.state.errors import StateError
from slackwater.state.models import DesiredState, Pipeline

_log = structlog.get_logger("slackwater.pipeline.desired_state")

_LOOK_S: Final = 0.5
_POLL_S: Final = 0.05
_OF_OWNER: Final = frozenset(desired for desired in DesiredState if ends_run(desired))
# Meant for the process that ran the pipeline then; a pause is meant for the pipeline.
_OF_FORMER_OWNER: Final = _OF_OWNER | {DesiredState.AWAITING_OPERATOR}


class DesiredStateStore(Protocol):
    """The part of the metadata store that says what is desired of a pipeline; see Store."""

    def pipeline(self, name: str) -> Pipeline | None:
        """Return a pipeline; None if there is none."""

    def set_desired_state(
        self, name: str, desired: DesiredState, *, in_place_of: Collection[DesiredState]
    ) -> None:
        """Record what is desired, if one of in_place_of is desired now."""


class DesiredStatePoller:
    """Looks twice a second, in a thread of its own, at what is desired.

    Args:
        store: the metadata store, which knows the pipeline.
        pipeline: its name.
        signalled: set when the process is asked to end, which every pipeline of it obeys.
    """

    def __init__(self, store: DesiredStateStore, pipeline: str, signalled: threading.Event) -> None:
        self._store = store
        self._pipeline = pipeline
        self._signalled = signalled
        self._in_store = DesiredState.RUNNING
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to look. A request to a former owner no longer counts, but a pause does.

        Raises:
            StateError: the store can't be reached.
        """
        self._store.set_desired_state(
            self._pipeline, DesiredState.RUNNING, in_place_of=_OF_FORMER_OWNER
        )
        self._look()
        self._stopped = threading.Event()
        threading.Thread(
            target=self._run, args=(self._stopped,), name="desired-state", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop looking, and take back the requests that this owner has obeyed."""
        self._stopped.set()
        self._in_store = DesiredState.RUNNING
        try:
            self._store.set_desired_state(
                self._pipeline, DesiredState.RUNNING, in_place_of=_OF_OWNER
            )
        except StateError as error:
            # The next owner does the same when it starts.
            _log.warning("request not taken back", pipeline=self._pipeline, error=error.message)

    def current(self) -> DesiredState:
        """Return the desired state as it was seen last; a signal is a drain."""
        if self._signalled.is_set() and self._in_store is not DesiredState.STOPPED:
            return DesiredState.DRAINING
        return self._in_store

    def close_source(self) -> None:
        """Have the source choose no further epoch after a signal, which only this process has seen.

        A request in the store does so already, and a pause is to outlast this process. To be called
        again until the query has ended: meanwhile an operator may resume what is paused.

        Raises:
            StateError: the store can't be reached.
        """
        if self._signalled.is_set() and self._in_store is DesiredState.RUNNING:
            draining = DesiredState.DRAINING
            self._store.set_desired_state(
                self._pipeline, draining, in_place_of={DesiredState.RUNNING}
            )
            self._in_store = draining

    def await_operator(self) -> None:
        """Have the pipeline wait until it is resumed, or its process started again.

        Raises:
            StateError: the store can't be reached.
        """
        self._store.set_desired_state(
            self._pipeline, DesiredState.AWAITING_OPERATOR, in_place_of={DesiredState.RUNNING}
        )
        self._look()

    def wait(self, seconds: float) -> None:
        """Wait, at most until nothing further is to be begun."""
        until_s = time.monotonic() + seconds
        while may_begin(self.current()) and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_LOOK_S):
            try:
                self._look()
            except StateError as error:
                # Code that needs the store meets the same error, and handles it.
                _log.debug("can't look", pipeline=self._pipeline, error=error.message)

    def _look(self) -> None:
        pipeline = self._store.pipeline(self._pipeline)
        if pipeline is not None:
            self._in_store = pipeline.desired_state
