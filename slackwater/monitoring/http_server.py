"""The socket side of the HTTP server: few connections, little time for each, few log lines.

It lives in the pipeline's process, which needs descriptors and the interpreter for other things. So
there is a budget of connections. Over it, each that comes takes the place of the one that has
waited longest: a probe is answered even if others fill the budget. Connections and requests are
taken at a pace, so that any number of them costs a small share of one core. What has to wait waits
in the kernel, and takes none of the process's descriptors.
"""

import asyncio
import logging
import os
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from slackwater.config.settings import Tls
from slackwater.errors import HttpError
from slackwater.pipeline.alerts import Reminder

_log = structlog.get_logger("slackwater.monitoring.http")

# Open connections, and with TLS as many handshakes beside them.
CONNECTIONS_MAX: Final = 64
# With more connections than this, each has one answer: a client that comes has its turn.
_SHARED_MAX: Final = CONNECTIONS_MAX // 2
# A connection, or a request, costs a tenth of this. The same for both, so that an accepted
# connection is answered before it has to make room.
_PACE_S: Final = 0.005
# Connections that wait in the kernel, a second or two.
_BACKLOG: Final = 256
_NO_DESCRIPTOR_S: Final = 0.1
# From the connection, or the last answer, to the end of the next request's header.
_REQUEST_S_MAX: Final = 10.0
_HANDSHAKE_S_MAX: Final = 10.0
_ANSWER_S_MAX: Final = 30.0
_ANSWER_FIRST_S: Final = 5.0
_LOOK_EVERY_S: Final = 1.0
_HEADER_BYTES_MAX: Final = 16_384
# The kernel buffers so much of a client's data before it is read; by default megabytes.
_UNREAD_BYTES_MAX: Final = 16_384
_PARTING_S_MAX: Final = 1.0
# Nothing is loaded from elsewhere, and no other page shows or reads this one.
_HEADERS: Final = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


class Pace:
    """A limiter that lets one through every few milliseconds; the others wait for their turn."""

    def __init__(self) -> None:
        self._next_s = 0.0

    async def turn(self) -> None:
        """Wait for the next turn."""
        now_s = time.monotonic()
        turn_s = max(now_s, self._next_s)
        self._next_s = turn_s + _PACE_S
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)


@dataclass(frozen=True, slots=True)
class ConnectionUse:
    """The use of a connection at a moment.

    Attributes:
        is_answering: a request is being answered; otherwise one is waited for.
        since_s: when that began.
    """

    is_answering: bool
    since_s: float

    @property
    def precedence(self) -> float:
        """The order in which connections make room: answers are given some seconds more."""
        return self.since_s + (_ANSWER_FIRST_S if self.is_answering else 0.0)

    def is_overdue(self, now_s: float) -> bool:
        """Return True if it has gone on for too long."""
        limit_s = _ANSWER_S_MAX if self.is_answering else _REQUEST_S_MAX
        return now_s - self.since_s > limit_s


class _Connection(H11Protocol):
    """A connection that knows how long it has been waiting, or answering."""

    use = ConnectionUse(is_answering=False, since_s=0.0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.use = ConnectionUse(is_answering=False, since_s=time.monotonic())

    def handle_events(self) -> None:
        cycle: object = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self.cycle.keep_alive = len(self.connections) <= _SHARED_MAX
            self.use = ConnectionUse(is_answering=True, since_s=time.monotonic())

    def _should_upgrade(self) -> bool:
        """Return False: there are no WebSockets, and uvicorn would advise to install some."""
        return False

    def on_response_complete(self) -> None:
        self.use = ConnectionUse(is_answering=False, since_s=time.monotonic())
        if self.cycle.more_body:
            # The rest of a body is not read: it could go on for ever.
            self.transport.close()
        super().on_response_complete()


class TlsFiles:
    """Certificate and key, read again for the next connection when one of the files has changed.

    Raises:
        HttpError: they can't be read, or do not belong together.
    """

    def __init__(self, settings: Tls) -> None:
        self._settings = settings
        self._times = self._changed()
        self._context = self._load()
        self._reminder = Reminder()

    def context(self) -> ssl.SSLContext:
        """Return the files as they are; as they were before if that can't be used."""
        try:
            if (times := self._changed()) != self._times:
                self._context, self._times = self._load(), times
        except HttpError as error:
            if self._reminder.is_due(time.monotonic()):
                _log.warning("the former certificate goes on", error=error.message)
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._settings.certificate, self._settings.key, password="")
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        return context

    def _changed(self) -> tuple[int, ...]:
        try:
            return tuple(
                os.stat(file).st_mtime_ns
                for file in (self._settings.certificate, self._settings.key)
            )
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> HttpError:
        return HttpError(
            f"http.tls: {self._settings.certificate} and {self._settings.key} can't be used:"
            f" {error}.",
            "Name a certificate chain and its key, both in PEM and without a password",
        )


class _ReminderFilter(logging.Filter):
    """A filter that lets a message through as often as a Reminder allows, with any details."""

    def __init__(self) -> None:
        super().__init__()
        self._reminders: dict[str, Reminder] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the message is due."""
        reminder = self._reminders.setdefault(str(record.msg), Reminder())
        return reminder.is_due(time.monotonic())


class HttpServer:
    """A server of an application on a socket, on the thread that calls run().

    Args:
        app: the application.
        listening: a socket that has its address.
        tls: the certificate; None for plain HTTP.
    """

    def __init__(self, app: ASGIApp, listening: socket.socket, tls: TlsFiles | None) -> None:
        self._listening = listening
        self._tls = tls
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=_HEADERS,
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
            )
        )
        self._opening: dict[asyncio.Task[None], None] = {}
        self._pace = Pace()
        self._accept_reminder = Reminder()
        self._trouble_reminder = Reminder()

    @property
    def has_started(self) -> bool:
        """True once it accepts connections."""
        return self._server.started

    def stop(self) -> None:
        """Make run() end, from any thread, without waiting for connections."""
        self._server.should_exit = self._server.force_exit = True

    def run(self) -> None:
        """Serve until stop() is called."""
        reminder_filter = _ReminderFilter()
        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(reminder_filter)
        try:
            asyncio.run(self._serve())
        finally:
            logger.removeFilter(reminder_filter)
            self._listening.close()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note_trouble)
        self._listening.setblocking(False)
        # Connections inherit it.
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES_MAX)
        self._listening.listen(_BACKLOG)
        # uvicorn has no sockets of its own: it would accept without bounds.
        work = [self._accept(), self._close_overdue()]
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            await self._server.serve(sockets=[])
        finally:
            for task in (*tasks, *self._opening):
                task.cancel()
            for connection in self._connections():
                connection.transport.abort()

    def _connections(self) -> list[_Connection]:
        return [c for c in self._server.server_state.connections if isinstance(c, _Connection)]

    async def _accept(self) -> None:
        """Accept connections at the pace, and make room for each."""
        loop = asyncio.get_running_loop()
        while True:
            await self._pace.turn()
            try:
                connected, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                # Such as that no descriptor is free.
                if self._accept_reminder.is_due(time.monotonic()):
                    _log.warning("can't accept a connection", error=str(error))
                await asyncio.sleep(_NO_DESCRIPTOR_S)
                continue
            self._make_room()
            task = loop.create_task(self._open(connected))
            self._opening[task] = None
            task.add_done_callback(self._opening.pop)

    def _make_room(self) -> None:
        connections = self._connections()
        if len(connections) >= CONNECTIONS_MAX:
            min(connections, key=lambda each: each.use.precedence).transport.abort()
        if len(self._opening) >= CONNECTIONS_MAX:
            next(iter(self._opening)).cancel()

    async def _open(self, connected: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.context()
        # Else it does not speak TLS, or it had to make room: of no interest here.
        with suppress(OSError, asyncio.CancelledError):
            await loop.connect_accepted_socket(
                self._connection,
                connected,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=None if context is None else _PARTING_S_MAX,
            )

    def _connection(self) -> _Connection:
        return _Connection(self._server.config, self._server.server_state, {})

    async def _close_overdue(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now_s = time.monotonic()
            for connection in self._connections():
                if connection.use.is_overdue(now_s):
                    connection.transport.abort()

    def _note_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        if self._trouble_reminder.is_due(time.monotonic()):
            error = context.get("exception") or context["message"]
            _log.warning("trouble with a connection", error=repr(error))
