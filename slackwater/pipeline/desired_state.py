"""The desired state of a pipeline: set by its operator, in the metadata store, or by a signal."""

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

import structlog

from slackwater.pipeline.transitions import ends_run, may_begin
from slackwater.state.errors import StateError
from slackwater.state.models import DesiredState, Pipeline

_log = structlog.get_logger("slackwater.pipeline.desired_state")

_LOOK_S: Final = 0.5
_POLL_S: Final = 0.05
_OF_OWNER: Final = frozenset(desired for desired in DesiredState if ends_run(desired))
# Requests to the process that ran the pipeline then; a pause is for the pipeline, and outlasts
# them.
_OF_FORMER_OWNER: Final = _OF_OWNER | {DesiredState.AWAITING_OPERATOR}


class DesiredStateStore(Protocol):
    """The part of the metadata store with the desired state; see Store."""

    def pipeline(self, name: str) -> Pipeline | None:
        """Return a pipeline; None if there is none."""

    def set_desired_state(
        self,
        name: str,
        desired: DesiredState,
        *,
        in_place_of: Collection[DesiredState],
        generation: int,
    ) -> None:
        """Record it, if one of in_place_of is desired now, of the owner of that generation.

        RUNNING leaves a paused pipeline paused.
        """


class DesiredStatePoller:
    """A poller of the desired state, twice a second, in a thread of its own.

    Args:
        store: the metadata store, which knows the pipeline.
        pipeline: its name.
        signalled: set when the process is asked to end, which every pipeline of it obeys.
        generation: returns the generation of the lease that this process holds. Requests to another
            owner are left alone.
        drain_s_max: how long after a signal the running epoch may take to end; then it is left to
            be replayed, so that the sender of the signal need not kill the process.
    """

    def __init__(
        self,
        store: DesiredStateStore,
        pipeline: str,
        signalled: threading.Event,
        generation: Callable[[], int],
        drain_s_max: float = math.inf,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._signalled = signalled
        self._lease_generation = generation
        self._drain_s_max = drain_s_max
        self._drain_until_s: float | None = None
        self._generation = 0
        self._in_store = DesiredState.RUNNING
        # Set while the store does not know yet that the pipeline awaits an operator.
        self._is_wait_unwritten = False
        self._stopped = threading.Event()
        # A poll that is under way while this stops must not set the value back.
        self._value_lock = threading.Lock()

    def start(self) -> None:
        """Begin to poll. A request to a former owner no longer counts, but a pause does.

        Raises:
            LeaseLostError: this process does not own the pipeline.
            StateError: the store can't be reached.
        """
        self._generation = self._lease_generation()
        self._is_wait_unwritten = False
        self._stopped = threading.Event()
        self._write(DesiredState.RUNNING, in_place_of=_OF_FORMER_OWNER)
        self._poll(self._stopped)
        threading.Thread(
            target=self._run, args=(self._stopped,), name="desired-state", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop polling, and take back the requests that this owner has obeyed."""
        with self._value_lock:
            self._stopped.set()
            self._in_store = DesiredState.RUNNING
        try:
            self._write(DesiredState.RUNNING, in_place_of=_OF_OWNER)
        except StateError as error:
            # The next owner does the same when it starts.
            _log.warning("request not taken back", pipeline=self._pipeline, error=error.message)

    def current(self) -> DesiredState:
        """Return the desired state of the last poll; a signal is a drain, and finally a stop."""
        if not self._signalled.is_set() or self._in_store is DesiredState.STOPPED:
            return self._in_store
        if self._drain_until_s is None:
            self._drain_until_s = time.monotonic() + self._drain_s_max
        return (
            DesiredState.DRAINING
            if time.monotonic() < self._drain_until_s
            else DesiredState.STOPPED
        )

    def close_source(self) -> None:
        """Make the source choose no further epoch after a signal, which only this process has seen.

        A request in the store does so already, and a pause is to outlast this process. To be called
        again until the query has ended: meanwhile an operator may resume what is paused.

        Raises:
            StateError: the store can't be reached.
        """
        if self._signalled.is_set() and self._in_store is DesiredState.RUNNING:
            self._write(DesiredState.DRAINING, in_place_of={DesiredState.RUNNING})
            self._in_store = DesiredState.DRAINING

    def await_operator(self) -> None:
        """Make the pipeline wait until it is resumed, or its process started again.

        If the store can't be reached, the pipeline waits all the same, and the store is told as
        soon as it can be.
        """
        try:
            self._write_wait()
            self._poll(self._stopped)
        except StateError as error:
            _log.warning("wait not recorded", pipeline=self._pipeline, error=error.message)
            with self._value_lock:
                if may_begin(self._in_store):
                    self._in_store = DesiredState.AWAITING_OPERATOR
                    self._is_wait_unwritten = True

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_LOOK_S):
            try:
                if self._is_wait_unwritten:
                    self._write_wait()
                    self._is_wait_unwritten = False
                self._poll(stopped)
            except StateError as error:
                # Code that needs the store meets the same error, and handles it.
                _log.debug("can't look", pipeline=self._pipeline, error=error.message)

    def _poll(self, stopped: threading.Event) -> None:
        pipeline = self._store.pipeline(self._pipeline)
        with self._value_lock:
            if pipeline is not None and not stopped.is_set():
                self._in_store = pipeline.desired_state

    def _write_wait(self) -> None:
        self._write(DesiredState.AWAITING_OPERATOR, in_place_of={DesiredState.RUNNING})

    def _write(self, desired: DesiredState, *, in_place_of: Collection[DesiredState]) -> None:
        self._store.set_desired_state(
            self._pipeline, desired, in_place_of=in_place_of, generation=self._generation
        )
