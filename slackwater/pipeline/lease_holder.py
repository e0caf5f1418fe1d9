"""This process's side of a pipeline's lease: it takes it, renews it and notices that it is lost.

The rules are those of slackwater.state.lease.
"""

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import structlog

from slackwater.errors import PipelineOwnedError
from slackwater.state.errors import LeaseLostError, StateError, StoreUnreachableError
from slackwater.state.lease import (
    LeaseObservation,
    acquire_lease,
    is_expired,
    observe,
    read_lease,
    release_lease,
    renew_lease,
)
from slackwater.state.models import Lease, Pipeline
from slackwater.state.store import Store

_log = structlog.get_logger("slackwater.pipeline.lease_holder")

# The renewals in a lease's duration: one lost renewal does no harm.
_RENEWALS: Final = 4
_OWNER: Final = re.compile(r".* pid (?P<pid>\d+) \((?P<namespace>\S+) \w+\)")
_LOOK_S: Final = 0.25
_SOON_S: Final = 0.02
_OF_THIS_PROCESS: Final[set[str]] = set()


def owner_name() -> str:
    """Return a name of this process: host, process id, its namespace, and a random part."""
    name = f"{socket.gethostname()} pid {os.getpid()} ({_namespace()} {uuid.uuid4().hex[:8]})"
    _OF_THIS_PROCESS.add(name)
    return name


def owner_is_dead(owner: str) -> bool:
    """Return True if an owner was a process of this machine that no longer runs.

    Then a killed pipeline can be started again without waiting for its lease to run out. If process
    ids can't be compared, the answer is False.
    """
    match = _OWNER.fullmatch(owner)
    if match is None or match.group("namespace") != _namespace() or owner in _OF_THIS_PROCESS:
        return False
    pid = int(match.group("pid"))
    # The same process id under another name: it was an earlier process.
    return pid == os.getpid() or not psutil.pid_exists(pid)


def has_live_owner(pipeline: Pipeline) -> bool:
    """Return whether a process owns the pipeline and has not died, as far as this machine shows."""
    return pipeline.owner is not None and not owner_is_dead(pipeline.owner)


def has_dead_owner(pipeline: Pipeline) -> bool:
    """Return whether the pipeline's owner is known to have died."""
    return pipeline.owner is not None and owner_is_dead(pipeline.owner)


def _namespace() -> str:
    """Return the name of the process-id namespace: each container has its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return uuid.uuid4().hex


class LeaseHolder:
    """A holder of a pipeline's lease, which renews it in a thread and notices when it is lost.

    Args:
        store: the metadata store, which has the pipeline.
        pipeline: its name.
        duration_s: the seconds after which an owner that has not renewed its lease loses it.
    """

    def __init__(self, store: Store, pipeline: str, *, duration_s: float) -> None:
        self._store = store
        self._pipeline = pipeline
        self._duration_s = duration_s
        self._name = owner_name()
        self._observation: LeaseObservation | None = None
        self._lease: Lease | None = None
        self._renewed_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self.lost = threading.Event()

    @property
    def generation(self) -> int:
        """The generation of the lease that is held.

        Raises:
            LeaseLostError: none is held.
        """
        if self._lease is None:
            raise LeaseLostError(f"pipeline {self._pipeline!r} is not owned by this process.")
        return self._lease.generation

    @property
    def is_held(self) -> bool:
        """True while this process owns the pipeline, as far as it knows."""
        return self._lease is not None and not self.lost.is_set()

    @property
    def unrenewed_s(self) -> float | None:
        """The seconds since the held lease was renewed, once they exceed its duration.

        Then the store takes no writes, as on a full disk, even if it can be read.
        """
        since_s = time.monotonic() - self._renewed_s
        return since_s if self.is_held and since_s > self._duration_s else None

    def is_lost(self) -> bool:
        """Return True if another process has taken the lease that this one held."""
        return self.lost.is_set()

    def acquire(
        self,
        *,
        wait: bool,
        until: Callable[[], bool],
        while_waiting: Callable[[], None] = lambda: None,
    ) -> bool:
        """Become the owner; return False if until() became true first.

        Args:
            wait: stand by until the owner has left or died; otherwise refuse at once, unless the
                pipeline becomes free within the lease's duration.
            until: asked while waiting.
            while_waiting: called once, if the lease has to be waited for.

        Raises:
            PipelineOwnedError: without wait, another process renews the lease.
            StateError: the store can't be asked. A standby asks a store that only does not answer
                again.
        """
        is_logged = False
        while not until():
            try:
                last, observation = self._observation, self.observe()
                is_free = self._is_free(observation)
                if is_free and self._acquire_free(observation.lease):
                    return True
            except StoreUnreachableError as error:
                if not wait:
                    raise
                _log.warning(
                    "can't look at the lease", pipeline=self._pipeline, error=error.message
                )
                continue
            # Where another one was faster, if the store is in order, look again, but not at once.
            if not is_free:
                if last is not None and last.lease != observation.lease and not wait:
                    raise PipelineOwnedError(
                        f"pipeline {self._pipeline!r} is run by {observation.lease.owner}.",
                        "Stop it there, or set lease.when_taken: wait to stand by",
                    )
                if not is_logged:
                    is_logged = True
                    _log.info("standing by", pipeline=self._pipeline, owner=observation.lease.owner)
                    while_waiting()
            time.sleep(self._pause_s(observation))
        return False

    def _pause_s(self, observation: LeaseObservation) -> float:
        """Return the seconds after which to look again: once the lease is over, at the latest."""
        left_s = observation.since_s + self._duration_s - time.monotonic()
        return min(_LOOK_S, self._duration_s / _RENEWALS, max(left_s, _SOON_S))

    def _is_free(self, observation: LeaseObservation) -> bool:
        now_s = time.monotonic()
        return is_expired(observation, now_s, duration_s=self._duration_s) or owner_is_dead(
            str(observation.lease.owner)
        )

    def _acquire_free(self, seen: Lease) -> bool:
        """Acquire a lease that was free when it was read, if it still is."""
        taken = acquire_lease(self._store, self._pipeline, self._name, seen)
        if taken is None:
            return False
        self._hold(taken, former_owner=seen.owner)
        return True

    def observe(self) -> LeaseObservation:
        """Read the lease, and return since when it has been unchanged, as far as this process saw.

        Raises:
            StateError: the store can't be asked.
        """
        began_s = time.monotonic()
        try:
            lease = read_lease(self._store, self._pipeline)
        finally:
            if self._observation is not None:
                # While the store did not answer, the owner could not renew the lease either.
                since_s = self._observation.since_s + time.monotonic() - began_s
                self._observation = replace(self._observation, since_s=since_s)
        self._observation = observe(self._observation, lease, time.monotonic())
        return self._observation

    def check(self, generation: int | None = None) -> None:
        """Ask the store whether the lease is still held.

        Args:
            generation: of the lease under which the work was begun; None for the one held now.

        Raises:
            LeaseLostError: another process owns the pipeline, or this one by a later lease.
            StateError: the store can't be asked.
        """
        held = self.generation
        lease = read_lease(self._store, self._pipeline)
        # Meanwhile this process may have left the pipeline and taken it again.
        if lease.generation != held == self.generation:
            self.lost.set()
        if lease.generation != (held if generation is None else generation):
            raise LeaseLostError(
                f"pipeline {self._pipeline!r} is owned by {lease.owner} now.",
                "Nothing is lost; the new owner continues",
            )

    def release(self) -> None:
        """Leave the pipeline to a standby; do nothing if no lease is held."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._lease is not None and not self.lost.is_set():
            try:
                release_lease(self._store, self._pipeline, self._lease)
            except StateError as error:
                # The lease expires without this.
                _log.warning("lease not released", pipeline=self._pipeline, error=error.message)
        self._lease = None

    def _hold(self, lease: Lease, *, former_owner: str | None) -> None:
        self._renewed_s = time.monotonic()
        self._lease = lease
        self.lost.clear()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        if former_owner is not None:
            _log.warning("took over", pipeline=self._pipeline, former_owner=former_owner)

    def _renew(self) -> None:
        while not self._stopped.wait(self._duration_s / _RENEWALS):
            assert self._lease is not None  # noqa: S101 - held while this runs
            try:
                renewed = renew_lease(self._store, self._pipeline, self._lease)
            except StateError as error:
                # No other process can take the lease from a store that does not answer.
                _log.warning("lease not renewed", pipeline=self._pipeline, error=error.message)
                continue
            if renewed is None:
                _log.error("lease lost", pipeline=self._pipeline)
                self.lost.set()
                return
            self._lease = renewed
            self._renewed_s = time.monotonic()
