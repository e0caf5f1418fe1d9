"""Partition queries that stay open, thousands of them, in one event loop of asyncio's.

A thread for each would cost more than their messages do. Where a call waits for messages, the event
loop goes on: what reads it is a greenlet, whose wait a coroutine does in its place.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.reader.transport.receive_loop import current_loop, set_loop
from slackwater.reader.transport.statement import Statement
from slackwater.reader.transport.transfers import Transfers

T = TypeVar("T")


class OpenStreams:
    """Streams of one database, for the coroutines of one event loop.

    Args:
        connection: opens them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waits = greenlet_waits()

    async def portions(self, statement: Statement) -> AsyncIterator[list[bytes]]:
        """Yield the serialized PartialResultSets of a query, those together that came at once.

        Raises:
            ReaderError: there is no session.
            grpc.RpcError, GoogleAuthError: the call failed.
        """
        call = await self._waits.run(lambda: self._connection.stream(statement))
        arrivals = call.arrivals()
        try:
            while (messages := await self._waits.run(lambda: next(arrivals, None))) is not None:
                yield messages
        except CALL_ERRORS as error:
            self._connection.forget_session_if_lost(error)
            raise
        finally:
            call.close()


class GreenletWaits:
    """The loop of the calls that coroutines make; see Loop.

    Attributes:
        events: asyncio's loop.
    """

    is_waiting = True

    def __init__(self) -> None:
        self.transfers = Transfers()
        self._waited: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.events = asyncio.get_running_loop()
        self.events.add_reader(self.transfers.fileno(), self._move)

    async def run(self, work: Callable[[], T]) -> T:
        """Return what work returns, or raise what it raises; the event loop does its waits."""
        inner = greenlet(work)
        result = inner.switch()
        while not inner.dead:
            self._set_timer()
            try:
                await result
            except BaseException as error:  # noqa: BLE001 - raised in the work, which ends by it
                result = inner.throw(error)
            else:
                result = inner.switch()
        self._set_timer()
        made: T = result
        return made

    def current_work(self) -> object:
        """Return what the running work is about to wait for."""
        self._waited = self.events.create_future()
        return self._waited

    def go_on(self) -> None:
        """Let others go on until this work is resumed."""
        getcurrent().parent.switch(self._waited)

    def resume(self, work: Any) -> None:
        """Let a work go on soon."""
        if not work.done():
            work.set_result(None)

    def wait_for(self, blocking: Callable[[], T]) -> T:
        """Return what a call in another thread returns, or raise what it raises."""
        outcome = self.events.run_in_executor(None, blocking)
        getcurrent().parent.switch(outcome)
        return outcome.result()

    def _move(self) -> None:
        self.transfers.move(is_waiting=False)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due_s := self.transfers.due_s) is not None:
            self._timer = self.events.call_later(max(0.0, due_s - time.monotonic()), self._move)


def greenlet_waits() -> GreenletWaits:
    """Return the one of the event loop that runs in this thread."""
    loop = current_loop()
    if not isinstance(loop, GreenletWaits) or loop.events is not asyncio.get_running_loop():
        loop = GreenletWaits()
        set_loop(loop)
    return loop
