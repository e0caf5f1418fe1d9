"""A service all of whose processes are stopped by a signal, as an owner that was only frozen."""

from collections.abc import Callable
from contextlib import suppress

import psutil

from slackwater.demo.service import Service
from slackwater.state.store import Store


class Frozen:
    """Freezes a service when it is made.

    Args:
        service: a running one.
        state_url: the URL of its metadata store. A process that is frozen in a transaction would
            block all other writers to SQLite: it is frozen while none of them writes.
    """

    def __init__(self, service: Service, state_url: str) -> None:
        process = psutil.Process(service.pid)
        self._processes: list[psutil.Process] = []

        def stop(_connection: object) -> None:
            self._processes = [process, *process.children(recursive=True)]
            self._send(psutil.Process.suspend)

        store = Store.open(state_url, migrate=False)
        try:
            store.write(stop)
        finally:
            store.close()

    def thaw(self) -> None:
        """Let the processes go on."""
        self._send(psutil.Process.resume)

    def _send(self, signal: Callable[[psutil.Process], None]) -> None:
        for process in self._processes:
            # One of Spark's may have ended.
            with suppress(psutil.NoSuchProcess):
                signal(process)
