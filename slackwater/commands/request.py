"""The commands `pause`, `resume`, `drain` and `stop`: requests in the metadata store."""

import time
from collections.abc import Iterator
from typing import Final

from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.errors import RecoveryError, RequestTimeoutError
from slackwater.pipeline.lease_holder import has_live_owner
from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.transitions import OBEYED
from slackwater.state.models import DesiredState, Pipeline
from slackwater.state.recovery_requests import request_recovery
from slackwater.state.store import Store

_POLL_S: Final = 0.1
_NOTHING_ACCEPTED: Final = Recovery()
_DONE: Final = {
    DesiredState.PAUSED: "is paused; `slackwater resume` lets it go on",
    DesiredState.RUNNING: "goes on",
    DesiredState.DRAINING: "has finished its epoch, and its process leaves it",
    DesiredState.STOPPED: "has stopped; the next start replays the epoch that was running",
}
_WITHOUT_OWNER: Final = {
    DesiredState.PAUSED: "the next one finds it paused",
    DesiredState.RUNNING: "`slackwater run` starts one",
    DesiredState.DRAINING: "its owner has died",
    DesiredState.STOPPED: "its owner has died",
}


def request(
    settings: Settings,
    desired: DesiredState,
    *,
    seconds_max: float,
    recovery: Recovery = _NOTHING_ACCEPTED,
) -> Iterator[str]:
    """Request that a pipeline pause, resume, drain or stop, and report the result.

    Args:
        settings: the pipeline's.
        desired: the requested state.
        seconds_max: how long to wait for the pipeline's owner to comply; 0 not to wait.
        recovery: the losses that the operator accepts so that a failed pipeline goes on.

    Yields:
        Lines for the user.

    Raises:
        PipelineNotStartedError: the store does not know the pipeline.
        StateError: the store can't be reached.
        RequestTimeoutError: the owner has not complied in time.
        RecoveryError: something is accepted, and no process waits with the failed pipeline.
    """
    recovery.require_valid()
    with open_pipeline(settings) as (store, pipeline):
        name = settings.pipeline
        if pipeline.owner is None and desired in (DesiredState.DRAINING, DesiredState.STOPPED):
            yield f"{name}: no process runs it"
            return
        if recovery.accepts_nothing:
            store.request(name, desired)
        else:
            _request_recovery(store, pipeline, recovery)
        if not has_live_owner(pipeline):
            yield f"{name}: no process runs it; {_WITHOUT_OWNER[desired]}"
            return
        if seconds_max == 0:
            yield f"{name}: requested; `slackwater status` says what became of it"
            return
        _wait(store, pipeline, desired, seconds_max)
        yield f"{name}: {_DONE[desired]}"


def _request_recovery(store: Store, pipeline: Pipeline, recovery: Recovery) -> None:
    name = pipeline.name
    if not has_live_owner(pipeline):
        raise RecoveryError(
            f"no process runs pipeline {name!r}.",
            "`slackwater run` takes the same options --skip-to and --from-watermark",
        )
    if not request_recovery(store, name, recovery.from_watermark, recovery.skip_to):
        raise RecoveryError(
            f"pipeline {name!r} does not wait for an operator: it is {_state(store, name)}.",
            "--skip-to and --from-watermark are for a pipeline that has failed permanently",
        )


def _wait(store: Store, pipeline: Pipeline, desired: DesiredState, seconds_max: float) -> None:
    """Wait until the pipeline's owner has complied, or is no longer the owner.

    Raises:
        RequestTimeoutError: the owner has not complied in time.
    """
    until = time.monotonic() + seconds_max
    while time.monotonic() < until:
        now = store.pipeline(pipeline.name)
        if now is None or now.state in OBEYED[desired] or now.owner != pipeline.owner:
            return
        time.sleep(_POLL_S)
    raise RequestTimeoutError(
        f"after {seconds_max:g} s, pipeline {pipeline.name!r} is {_state(store, pipeline.name)};"
        f" requested: {desired.value}.",
        f"It complies at the end of its epoch; look at the log of {pipeline.owner}",
    )


def _state(store: Store, name: str) -> str:
    now = store.pipeline(name)
    if now is None or now.state is None:
        return "not started"
    return f"{now.state.value} ({now.state_reason})" if now.state_reason else now.state.value
