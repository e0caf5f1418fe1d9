"""A pipeline's state in this process: events go to the table, new states to the metadata store."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from slackwater.pipeline.disks import advice, disks_of
from slackwater.pipeline.transitions import Action, Event, RunMode, State, transition
from slackwater.state.errors import StateError
from slackwater.state.models import DesiredState, PipelineState
from slackwater.worker_errors import ErrorRecord

_log = structlog.get_logger("slackwater.pipeline.lifecycle")

POLL_S: Final = 0.05
_RESUMED_FROM: Final = frozenset({State.DRAINING, State.PAUSED, State.FAILED_PERMANENTLY})


class StateStore(Protocol):
    """The part of the metadata store that a lifecycle needs."""

    def set_state(self, name: str, state: PipelineState, reason: str, since_ns: int) -> None:
        """Record the pipeline's state; see Store.set_state()."""


class Clock(Protocol):
    """The part of the module time that waits need."""

    def monotonic(self) -> float:
        """Return seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


class Lifecycle:
    """The state of one pipeline in this process.

    Each change of state is recorded in the store. If the store can't be reached, that is only
    logged: the recorded state serves monitoring, and nothing is decided by it.

    Args:
        pipeline: its name.
        store: the metadata store.
        desired_state: returns the desired state.
        mode: how long the process stays with it.
        clock: the time, for tests.
        places: where it writes on this machine, by setting.
    """

    def __init__(
        self,
        pipeline: str,
        store: StateStore,
        desired_state: Callable[[], DesiredState],
        mode: RunMode,
        clock: Clock = time,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline: Final = pipeline
        self.mode: Final = mode
        self.clock: Final = clock
        self._store = store
        self._desired_state = desired_state
        self._places = places or {}
        self._state = State.STANDING_BY
        self._unrecorded: tuple[PipelineState, str] | None = None

    @property
    def state(self) -> State:
        """The state as of the last event."""
        return self._state

    @property
    def unrecorded(self) -> tuple[PipelineState, str] | None:
        """The state and its reason, if the store could not be told of them; None if it was."""
        return self._unrecorded

    def desired_state(self) -> DesiredState:
        """Return the desired state now."""
        return self._desired_state()

    def explained(self, failure: ErrorRecord) -> ErrorRecord:
        """Return a failure that names the full or read-only disk, if it is about one."""
        hint = f"{advice(failure.message, disks_of(self._places))} {failure.hint}".strip()
        return replace(failure, hint=hint)

    def on(self, event: Event, reason: str = "", desired: DesiredState | None = None) -> Action:
        """Enter the state that follows an event, and return what to do.

        Args:
            event: what has been seen.
            reason: why the pipeline failed and what to do about it; empty if it did not fail.
            desired: the desired state when the event was seen; None for the present one.

        Raises:
            ImpossibleTransitionError: the table does not expect the event now.
        """
        next_state, action = transition(self._state, desired or self._desired_state(), event)
        if next_state is not self._state:
            self._enter(next_state, reason)
        return action

    def without_query(self) -> Action:
        """Return what to do while this process owns the pipeline and no query runs."""
        return self.on(self.mode.without_query())

    def lease_lost(self) -> Action:
        """Return what to do when another process has taken the pipeline over."""
        return self.on(self.mode.lease_lost())

    def wait(self, is_lease_lost: Callable[[], bool], seconds: float | None = None) -> Action:
        """Wait in this state, and return the first action that is not to wait in it.

        Args:
            is_lease_lost: called at each poll.
            seconds: after this time a failed pipeline is tried again; None for never.
        """
        state = self._state
        until_s = None if seconds is None else self.clock.monotonic() + seconds
        while True:
            if is_lease_lost():
                return self.lease_lost()
            action = self.without_query()
            if self._state is state and until_s is not None and self.clock.monotonic() >= until_s:
                action = self.on(Event.DELAY_OVER)
            if action is not Action.WAIT or self._state is not state:
                return action
            self.clock.sleep(POLL_S)

    def _enter(self, state: State, reason: str) -> None:
        if state is State.PAUSED:
            _log.info("paused", pipeline=self.pipeline)
        elif state is State.STARTING and self._state in _RESUMED_FROM:
            _log.info("resumed", pipeline=self.pipeline)
        self._state = state
        if state.recorded is None:
            return
        try:
            self._store.set_state(self.pipeline, state.recorded, reason, time.time_ns())
            self._unrecorded = None
        except StateError as error:
            self._unrecorded = (state.recorded, reason)
            _log.warning("state not recorded", pipeline=self.pipeline, error=error.message)
