"""The HTTP server: probes, metrics, the status as JSON, and a page for people.

The answers come from the metadata store, which is read once a second, and from this process's
counters; the source's clock is read four times a minute (slackwater.pipeline.spanner_clock).
Probes and metrics are answered even while neither the store nor the source answers.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from slackwater.config.settings import Http
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.http_access import Access, TokenFile, own_names
from slackwater.monitoring.http_server import HttpServer, TlsFiles
from slackwater.monitoring.http_socket import listen
from slackwater.monitoring.log import RECENT
from slackwater.monitoring.metrics import Metrics, StatusCollector
from slackwater.monitoring.status import PipelineStatus, StatusPoller
from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.printing import in_one_line
from slackwater.state.errors import StateError

_log = structlog.get_logger("slackwater.monitoring.http")

_START_S_MAX: Final = 10.0
_END_S_MAX: Final = 5.0
_EPOCHS_MAX: Final = 10_000
_EPOCHS: Final = 300
_SECONDS_MAX: Final = 366 * 86_400
_SECONDS: Final = 3_600
_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
# Answers from the metadata store: the most made at a time, and the most that wait.
_STORE_ANSWERS_MAX: Final = 4
_ASKING_MAX: Final = 32


class _Json(JSONResponse):
    """JSON with escapes that make it safe to show on a terminal."""

    def render(self, content: Any) -> bytes:
        """Return the text of an answer."""
        return in_one_line(bytes(super().render(content)).decode()).encode()


class Routes:
    """The routes of the application, and the handler of each.

    Args:
        pollers: one for each pipeline of the process.
        metrics: the process's.
    """

    def __init__(self, pollers: Sequence[StatusPoller], metrics: Metrics) -> None:
        self._pollers = {poller.supervisor.name: poller for poller in pollers}
        self._metrics = metrics
        self._asking = 0
        self._turns = asyncio.Semaphore(_STORE_ANSWERS_MAX)
        metrics.registry.register(StatusCollector(self._statuses))

    def app(self) -> Starlette:
        """Return the application with all routes."""
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/api/pipelines", self.pipelines),
                Route("/api/pipelines/{name}", self._in_turn(self.pipeline)),
                Route("/api/pipelines/{name}/epochs", self._in_turn(self.epochs)),
                Route("/api/pipelines/{name}/partitions", self._in_turn(self.partitions)),
                *(Route(path, _static(*page)) for path, page in _PAGE.items()),
            ],
            exception_handlers={StateError: _no_store},
        )

    async def healthz(self, request: Request) -> Response:
        """Answer 200: the process is alive, even if its threads wait."""
        del request
        return PlainTextResponse("ok\n")

    def readyz(self, request: Request) -> Response:
        """Answer 200 if every pipeline is ready, else 503 and the reasons.

        With `standby=ready` a process that stands by is ready, too: Kubernetes updates and drains
        pods one after the other, and waits until each is ready.
        """
        standby_is_ready = request.query_params.get("standby") == "ready"
        reasons = {
            name: poller.status().unready_reason(standby_is_ready=standby_is_ready)
            for name, poller in self._pollers.items()
        }
        lines = [f"{name}: {in_one_line(reason)}\n" for name, reason in reasons.items() if reason]
        return PlainTextResponse("".join(lines) or "ok\n", 503 if lines else 200)

    def metrics(self, request: Request) -> Response:
        """Answer with the metrics in Prometheus' text format."""
        del request
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def pipelines(self, request: Request) -> Response:
        """Answer with the status of each pipeline."""
        del request
        return _Json([poller.status().json_fields() for poller in self._pollers.values()])

    def pipeline(self, request: Request) -> Response:
        """Answer with the status of one pipeline, its gaps, and the last warnings and errors."""
        poller = self._poller(request)
        name = poller.supervisor.name
        recent = [entry for entry in list(RECENT) if entry.get("pipeline") in (None, name)]
        return _Json(
            {**poller.status().json_fields(), "gaps": poller.gaps(), "recent": recent[::-1]}
        )

    def epochs(self, request: Request) -> Response:
        """Answer with the last `limit` epochs, the newest last."""
        limit = _number(request, "limit", _EPOCHS, _EPOCHS_MAX)
        return _Json(self._poller(request).epochs(limit))

    def partitions(self, request: Request) -> Response:
        """Answer with the partitions of the last `seconds`, and their parents."""
        poller = self._poller(request)
        seconds = _number(request, "seconds", _SECONDS, _SECONDS_MAX)
        return _Json(poller.partitions(poller.status(), seconds))

    def _in_turn(
        self, handler: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that neither probes nor the end wait for, however slow the store is."""

        async def answer(request: Request) -> Response:
            if self._asking >= _ASKING_MAX:
                raise HTTPException(503, "too many requests wait for the metadata store")
            self._asking += 1
            try:
                async with self._turns:
                    return await run_in_threadpool(handler, request)
            finally:
                self._asking -= 1

        return answer

    def _statuses(self) -> list[PipelineStatus]:
        return [poller.status() for poller in self._pollers.values()]

    def _poller(self, request: Request) -> StatusPoller:
        name = request.path_params["name"]
        poller = self._pollers.get(name)
        if poller is None:
            names = ", ".join(self._pollers)
            raise HTTPException(404, f"this process runs no pipeline {name!r}; it runs: {names}")
        return poller


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name, str(default))
    # Python refuses to read a number of thousands of digits.
    is_short = len(text) <= len(str(maximum))
    if not (is_short and text.isdecimal() and 1 <= int(text) <= maximum):
        shown = text if is_short else f"{text[: len(str(maximum))]}..."
        raise HTTPException(400, f"{name} {shown!r} is not a number from 1 to {maximum}")
    return int(text)


def _static(name: str, media_type: str) -> Any:
    content = files("slackwater.monitoring.page").joinpath(name).read_bytes()

    async def answer(request: Request) -> Response:
        del request
        return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    return answer


def _no_store(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(f"{in_one_line(str(error))}\n", 503)


@contextmanager
def serving(
    settings: Http,
    supervisors: Sequence[PipelineSupervisor],
    history: EpochHistory,
    metrics: Metrics,
) -> Iterator[str]:
    """Serve HTTP while the context is open, on a thread of its own.

    Yields:
        The address, such as http://127.0.0.1:8080.

    Raises:
        HttpError: the address can't be listened on, or a file of the settings can't be used.
    """
    pollers = [
        StatusPoller(supervisor, history, metrics.observe_store) for supervisor in supervisors
    ]
    token, tls = secrets_of(settings)
    access = Access(Routes(pollers, metrics).app(), own_names(settings), token)
    listening = listen(settings)
    for poller in pollers:
        poller.start()
    # On a thread, uvicorn installs no signal handlers: the process has its own, which drain. And as
    # this one is a daemon, so are those that answer: the end of the process waits for none.
    server = HttpServer(access, listening, tls)
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    until = time.monotonic() + _START_S_MAX
    while not server.has_started and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    _log.info("serving", address=address)
    try:
        yield address
    finally:
        for poller in pollers:
            poller.stop()
        server.stop()
        thread.join(_END_S_MAX)


def secrets_of(settings: Http) -> tuple[TokenFile | None, TlsFiles | None]:
    """Return the required token, and the certificate to encrypt with; None if there is none.

    Raises:
        HttpError: a file can't be used.
    """
    token = None if settings.token_file is None else TokenFile(settings.token_file)
    return token, None if settings.tls is None else TlsFiles(settings.tls)
