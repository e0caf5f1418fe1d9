"""HTTP: probes, metrics, the status as JSON, and a page for people.

Everything comes from the metadata store, looked at once a second, and from what this process
counts; Spanner's clock is asked four times a minute. Probes and metrics are answered while neither
answers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from slackwater.config.settings import Http
from slackwater.errors import HttpError
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.log import RECENT
from slackwater.monitoring.metrics import Metrics, StatusCollector
from slackwater.monitoring.status import PipelineStatus, StatusPoller
from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.state.errors import StateError

_log = structlog.get_logger("slackwater.monitoring.http")

_START_S_MAX: Final = 10.0
_EPOCHS_MAX: Final = 10_000
_EPOCHS: Final = 300
_SECONDS_MAX: Final = 366 * 86_400
_SECONDS: Final = 3_600
_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
# Nothing from anywhere else, and nobody frames it.
_POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"


class Pages:
    """The answers.

    Args:
        pollers: one for each pipeline of the process.
        metrics: the process's.
    """

    def __init__(self, pollers: Sequence[StatusPoller], metrics: Metrics) -> None:
        self._pollers = {poller.supervisor.name: poller for poller in pollers}
        self._metrics = metrics
        metrics.registry.register(StatusCollector(self._statuses))

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route("/api/pipelines", self.pipelines),
                Route("/api/pipelines/{name}", self.pipeline),
                Route("/api/pipelines/{name}/epochs", self.epochs),
                Route("/api/pipelines/{name}/partitions", self.partitions),
                *(Route(path, _static(*page)) for path, page in _PAGE.items()),
            ],
            exception_handlers={StateError: _no_store},
        )

    def healthz(self, request: Request) -> Response:
        """Alive: it answers."""
        del request
        return PlainTextResponse("ok\n")

    def readyz(self, request: Request) -> Response:
        """Connected, the owner, and no partition stalled; otherwise 503 and why."""
        del request
        found = {name: poller.unready() for name, poller in self._pollers.items()}
        reasons = [f"{name}: {reason}\n" for name, reason in found.items() if reason]
        return PlainTextResponse("".join(reasons) or "ok\n", 503 if reasons else 200)

    def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        del request
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def pipelines(self, request: Request) -> Response:
        """Where each pipeline stands."""
        del request
        return JSONResponse([poller.look().fields() for poller in self._pollers.values()])

    def pipeline(self, request: Request) -> Response:
        """Where one stands, and what it was warned of last."""
        poller = self._poller(request)
        name = poller.supervisor.name
        recent = [entry for entry in list(RECENT) if entry.get("pipeline") in (None, name)]
        return JSONResponse(
            {**poller.look().fields(), "gaps": poller.gaps(), "recent": recent[::-1]}
        )

    def epochs(self, request: Request) -> Response:
        """The last epochs, the newest last; `limit` says how many."""
        limit = _number(request, "limit", _EPOCHS, _EPOCHS_MAX)
        return JSONResponse(self._poller(request).epochs(limit))

    def partitions(self, request: Request) -> Response:
        """The partitions with their parents; `seconds` says how far back."""
        poller = self._poller(request)
        seconds = _number(request, "seconds", _SECONDS, _SECONDS_MAX)
        return JSONResponse(poller.partitions(poller.look(), seconds))

    def _statuses(self) -> list[PipelineStatus]:
        return [poller.look() for poller in self._pollers.values()]

    def _poller(self, request: Request) -> StatusPoller:
        name = request.path_params["name"]
        found = self._pollers.get(name)
        if found is None:
            known = ", ".join(self._pollers)
            raise HTTPException(404, f"no pipeline {name!r} in this process; it has: {known}")
        return found


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise HTTPException(400, f"{name} {text!r} is no number from 1 to {most}")
    return int(text)


def _static(name: str, media_type: str) -> Any:
    content = files("slackwater.monitoring.page").joinpath(name).read_bytes()

    def answer(request: Request) -> Response:
        del request
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
        return Response(content, media_type=media_type, headers=headers)

    return answer


def _no_store(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(f"{error}\n", 503)


@contextmanager
def serving(
    given: Http, supervisors: Sequence[PipelineSupervisor], history: EpochHistory, metrics: Metrics
) -> Iterator[str | None]:
    """Answer HTTP for the time of the context; the address, None where it is off.

    Raises:
        HttpError: the address can't be listened on.
    """
    if given.listen is None:
        yield None
        return
    pollers = [
        StatusPoller(supervisor, history, metrics.observe_store) for supervisor in supervisors
    ]
    app = Pages(pollers, metrics).app()
    listening = _listen(given)
    for poller in pollers:
        poller.start()
    # Without signal handlers: those of the process drain its pipelines.
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="http", daemon=True)
    thread.start()
    until = time.monotonic() + _START_S_MAX
    while not server.started and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    _log.info("serving", address=address)
    try:
        yield address
    finally:
        for poller in pollers:
            poller.stop()
        server.should_exit = True
        thread.join()


def _listen(given: Http) -> socket.socket:
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((given.host, given.port))
    except OSError as error:
        listening.close()
        raise HttpError(
            f"http.listen {given.listen} can't be listened on: {error.strerror or error}.",
            "Give another address or port, or stop whoever has it",
        ) from error
    return listening
