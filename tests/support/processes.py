"""Processes of tests, forked from one that has loaded once what all of them need."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

FORKED: Final = multiprocessing.get_context("forkserver")
# Nothing of these starts a thread, which no child of a fork would have.
_LOADED: Final = (
    *("slackwater.state.store", "psycopg", "google.cloud.spanner_v1"),
    # With these a process has little left to load for itself.
    *("google.cloud.sqlalchemy_spanner", "alembic.autogenerate", "tests.support.stores"),
)
FORKED.set_forkserver_preload(list(_LOADED))


def pool(size: int) -> ProcessPoolExecutor:
    """Return a pool of new processes with this one's environment."""
    return ProcessPoolExecutor(size, FORKED, _use, (dict(os.environ),))


def process(function: Callable[..., None], *args: Any) -> Any:
    """Return a new process, not started, that calls a function with this one's environment."""
    return FORKED.Process(target=_call, args=(dict(os.environ), function, *args))


def _use(environ: Mapping[str, str]) -> None:
    """Set what may have changed since the common parent was started, as the emulator's host."""
    os.environ.update(environ)


def _call(environ: Mapping[str, str], function: Callable[..., None], *args: Any) -> None:
    _use(environ)
    function(*args)
