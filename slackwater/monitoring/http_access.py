"""Access to the HTTP server: by its own names, and with its token if it has one.

A page of another site can have its own name lead to this server's address (DNS rebinding), and
would then read its answers. It can't do so with an address, or a name that is not its own.
"""

import base64
import binascii
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from slackwater.config.settings import Http
from slackwater.errors import HttpError
from slackwater.monitoring.http_server import Pace
from slackwater.secrecy import keep_secret

# Kubernetes' probes have no token.
_OPEN: Final = frozenset({"/healthz", "/readyz"})
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\s]+)(?::\d*)?", re.IGNORECASE)
_TOKEN_LENGTH_MIN: Final = 16
_MADE_BY: Final = "Make one of 16 characters or more, by a random generator"


def own_names(settings: Http) -> frozenset[str]:
    """Return the names by which the server may be called, beside addresses."""
    machine = socket.gethostname().lower()
    names = {"localhost", settings.host, machine, machine.partition(".")[0], *settings.hosts}
    return frozenset(name.lower() for name in names)


def is_own(host: str, names: Collection[str]) -> bool:
    """Return True if a request's header Host has an address or one of the names.

    Args:
        host: the header.
        names: in lower case; `*.` before a name stands for all names below it.
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    name = parts[1].strip("[]").rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        below = (each[1:] for each in names if each.startswith("*."))
        return name in names or any(name.endswith(each) for each in below)
    return True


class TokenFile:
    """The token that a request has to have, read again each time: a Secret's file may change.

    Raises:
        HttpError: the file can't be read, or has no token.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._token = b""
        self._token = self._read()

    def is_shown(self, authorization: str) -> bool:
        """Return True if a header Authorization has the token, as Bearer or as a password."""
        # It may be being replaced.
        with suppress(HttpError):
            self._token = self._read()
        scheme, _, shown = authorization.partition(" ")
        value = shown.strip().encode()
        if scheme.lower() == "basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(value, self._token)

    @property
    def text(self) -> str:
        """The token itself."""
        return self._token.decode()

    def _read(self) -> bytes:
        try:
            token = self._path.read_bytes().strip()
        except OSError as error:
            raise HttpError(
                f"http.token_file {self._path} can't be read: {error.strerror}.", _MADE_BY
            ) from error
        if len(token) < _TOKEN_LENGTH_MIN or not token.isascii():
            raise HttpError(f"http.token_file {self._path} holds no token.", _MADE_BY)
        if token != self._token:
            keep_secret({"token": token.decode()})
        return token


class Access:
    """The application behind the checks; an ASGI application itself.

    Args:
        app: the application.
        names: see own_names().
        token: None if every request is answered.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], token: TokenFile | None) -> None:
        self._app = app
        self._names = names
        self._token = token
        self._pace = Pace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        await self._pace.turn()
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        # Only HTTP 1.0 goes without, which no browser speaks.
        if not is_own(headers.get("host", "localhost"), self._names):
            return PlainTextResponse(
                "this server has another name. Ask it by its address, or name this one in"
                " http.hosts\n",
                421,
            )
        if self._token is None or scope["path"] in _OPEN:
            return None
        if self._token.is_shown(headers.get("authorization", "")):
            return None
        challenge = {"WWW-Authenticate": 'Basic realm="slackwater", charset="UTF-8"'}
        return PlainTextResponse(
            "show the token of http.token_file, as Bearer or as the password of any user\n",
            401,
            challenge,
        )
