"""What is wanted of a pipeline: by its operator, in the metadata store, or by a signal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from slackwater.state.errors import StateError
from slackwater.state.models import DesiredState
from slackwater.state.store import Store

_log = structlog.get_logger("slackwater.pipeline.desired_state")

_LOOK_S: Final = 0.5
_POLL_S: Final = 0.05
_ENDS: Final = frozenset({DesiredState.DRAINING, DesiredState.STOPPED})
# Meant for whoever ran the pipeline then; a pause is meant for the pipeline.
_OF_FORMER: Final = _ENDS | {DesiredState.AWAITING_OPERATOR}


class DesiredStatePoller:
    """Looks twice a second, from a thread of its own, at what is wanted.

    Args:
        store: the metadata store, which knows the pipeline.
        pipeline: its name.
        signalled: set when the process is asked to end, which every pipeline of it obeys.
    """

    def __init__(self, store: Store, pipeline: str, signalled: threading.Event) -> None:
        self._store = store
        self._pipeline = pipeline
        self._signalled = signalled
        self._wanted = DesiredState.RUNNING
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to look; what was wanted of a former owner counts no more, but a pause holds.

        Raises:
            StateError: the store can't be reached.
        """
        self._store.set_desired_state(self._pipeline, DesiredState.RUNNING, in_place_of=_OF_FORMER)
        self._look()
        self._stopped = threading.Event()
        threading.Thread(
            target=self._run, args=(self._stopped,), name="desired-state", daemon=True
        ).start()

    def stop(self) -> None:
        """End; what was wanted of this owner was done."""
        self._stopped.set()
        self._wanted = DesiredState.RUNNING
        try:
            self._store.set_desired_state(self._pipeline, DesiredState.RUNNING, in_place_of=_ENDS)
        except StateError as error:
            # The next owner does the same when it starts.
            _log.warning("not noted", pipeline=self._pipeline, error=error.message)

    @property
    def wanted(self) -> DesiredState:
        """As it was seen last; a signal is a drain."""
        if self._signalled.is_set() and self._wanted is not DesiredState.STOPPED:
            return DesiredState.DRAINING
        return self._wanted

    def must_end(self) -> bool:
        """True where the pipeline's run shall end, at the epoch's end or at once."""
        return self.wanted in _ENDS

    def is_held(self) -> bool:
        """True where nothing further shall be begun."""
        return self.wanted is not DesiredState.RUNNING

    def drain(self) -> None:
        """Have no further epoch chosen; a pause does so already, and is to outlast this process.

        To be called again until the end: meanwhile an operator may resume what is paused.

        Raises:
            StateError: the store can't be reached.
        """
        if self._wanted is DesiredState.RUNNING:
            self._store.set_desired_state(
                self._pipeline, DesiredState.DRAINING, in_place_of={DesiredState.RUNNING}
            )
            self._wanted = DesiredState.DRAINING

    def give_up(self) -> None:
        """Nobody wants it to run until it is resumed, or the process started again.

        Raises:
            StateError: the store can't be reached.
        """
        self._store.set_desired_state(
            self._pipeline, DesiredState.AWAITING_OPERATOR, in_place_of={DesiredState.RUNNING}
        )
        self._look()

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as nothing further shall be begun."""
        until = time.monotonic() + seconds
        while not self.is_held() and time.monotonic() < until:
            time.sleep(_POLL_S)
        return self.is_held()

    def wait_for_resume(self, until: Callable[[], bool]) -> bool:
        """Wait until the pipeline shall run; False where it shall end, or until() was true."""
        while self.is_held():
            if self.must_end() or until():
                return False
            time.sleep(_POLL_S)
        return True

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_LOOK_S):
            try:
                self._look()
            except StateError as error:
                # Who needs the store meets the same error where it matters.
                _log.debug("can't look", pipeline=self._pipeline, error=error.message)

    def _look(self) -> None:
        known = self._store.pipeline(self._pipeline)
        if known is not None:
            self._wanted = known.desired_state
