"""The reader process: one for the Python workers of an executor. It keeps partition queries open.

    python -m slackwater.scheduler.continuous.reader_process SOCKET PID

It ends when nobody has asked it for a while, when process PID has ended, and when it is told to.
"""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa

from slackwater.log_lines import configure_worker
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.open_streams import OpenStreams
from slackwater.reader.transport.statement import partition_query
from slackwater.scheduler.continuous.followed_partition import Portion
from slackwater.scheduler.continuous.follower import IDLE_S, Follower, Limits, Wanted
from slackwater.scheduler.continuous.frames import FollowedStream, Request, frames
from slackwater.state.models import PartitionKey
from slackwater.timestamp import ms_to_ns, ms_to_seconds

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
# With few records beside them a core takes 6,000: a third leaves room for records.
_HEARTBEATS_A_SECOND: Final = 2_000


class ReaderProcess:
    """A server of the requests of tasks; all queries are in one event loop.

    Args:
        listener: takes the tasks' connections.
        parent: the process with which this one ends.
    """

    def __init__(self, listener: Listener, parent: psutil.Process | None) -> None:
        self._listener = listener
        self._parent = parent
        self._followers: dict[str, Follower] = {}
        self._asked_s = time.monotonic()

    async def run(self) -> None:
        """Answer until there is a reason to end."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, ended.set)
        threading.Thread(target=self._accept, args=(loop,), daemon=True).start()
        while not ended.is_set() and self._is_needed():
            for follower in self._followers.values():
                _keep_bounds(follower)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LOOK_EVERY_S)
        for follower in self._followers.values():
            await follower.close()

    def _is_needed(self) -> bool:
        is_idle = time.monotonic() - self._asked_s > IDLE_S
        return not is_idle and self._parent is not None and self._parent.is_running()

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give each connection a thread."""
        while True:
            try:
                pipe = self._listener.accept()
                threading.Thread(target=self._answer, args=(pipe, loop), daemon=True).start()
            except (OSError, RuntimeError) as error:
                # Too many open files, or threads: tasks read by themselves meanwhile.
                _log.warning("a task's request can't be taken: %s", error)
                time.sleep(_LOOK_EVERY_S)

    def _answer(self, pipe: Pipe, loop: asyncio.AbstractEventLoop) -> None:
        """Answer one request; a task that is gone is left alone."""
        with pipe, contextlib.suppress(OSError, EOFError):
            request: Request = pipe.recv()
            portions = asyncio.run_coroutine_threadsafe(self._portions(request), loop).result()
            for frame in frames(request.wanted, portions, request.bytes_max):
                pipe.send(frame)
            pipe.send(None)

    async def _portions(self, request: Request) -> Mapping[Wanted, Portion]:
        self._asked_s = time.monotonic()
        follower = self._follower(request.stream)
        if request.is_suspect:
            follower.forget_all()
            return {}
        return await follower.portions(request.wanted, request.end_ns, wait_s=request.wait_s)

    def _follower(self, stream: FollowedStream) -> Follower:
        name = repr(stream)
        if name not in self._followers:
            queries = _Queries(stream)
            limits = Limits(
                stream.memory_bytes,
                int(_HEARTBEATS_A_SECOND * ms_to_seconds(stream.heartbeat_ms)),
                ms_to_ns(stream.heartbeat_ms),
            )
            self._followers[name] = Follower(queries.open, stream.mode, limits)
        return self._followers[name]


def _keep_bounds(follower: Follower) -> None:
    try:
        follower.keep_bounds()
    except pa.ArrowException as error:
        # The records are more than Arrow can hold in one column.
        _log.warning("the records that wait for their tasks are dropped: %s", error)
        follower.forget_all()


class _Queries:
    """The queries of one change stream."""

    def __init__(self, stream: FollowedStream) -> None:
        self._stream = stream
        self._streams = OpenStreams(Connection(stream.change_stream))

    async def open(
        self, key: PartitionKey, start_ns: int, end_ns: int | None
    ) -> AsyncIterator[list[bytes]]:
        """Yield the messages of a query as they come, those together that came at once."""
        statement = partition_query(
            self._stream.dialect,
            self._stream.change_stream.change_stream,
            start_timestamp_ns=start_ns,
            end_timestamp_ns=end_ns,
            partition_token=key.token,
            heartbeat_ms=self._stream.heartbeat_ms,
            mode=self._stream.mode,
            function=key.function,
        )
        async for messages in self._streams.portions(statement):
            yield messages


def main(socket: Path, parent_pid: int) -> None:
    """Run the process, the only one for its socket, as ReaderClient starts it."""
    configure_worker()
    socket.unlink(missing_ok=True)
    parent = psutil.Process(parent_pid) if psutil.pid_exists(parent_pid) else None
    with Listener(str(socket), "AF_UNIX", backlog=64) as listener:
        asyncio.run(ReaderProcess(listener, parent).run())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
