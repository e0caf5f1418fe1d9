"""Asks another HTTP server as a client asked, so that its requests can be noted and held back."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import requests

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
# Of a connection, not of a message: https://datatracker.ietf.org/doc/html/rfc9110#section-7.6.1
_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "keep-alive", "date", "server"}


def _unchanged(query: str, content: bytes) -> bytes:
    del query
    return content


def forwarding_to(address: str, change: Callable[[str, bytes], bytes] = _unchanged) -> Application:
    """Return a WSGI application that asks a server, as the client asked.

    Args:
        address: the server's, with its port.
        change: gets the query and the content of an answer, and returns the content to be sent.
    """

    def forward(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        names = [name for name in environ if name.startswith("HTTP_")]
        headers = {name[5:].replace("_", "-").lower(): environ[name] for name in names}
        headers.pop("transfer-encoding", None)
        if environ.get("CONTENT_TYPE"):
            headers["content-type"] = environ["CONTENT_TYPE"]
        body = read_body(environ)
        if environ.get("CONTENT_LENGTH") == "0":
            headers["content-length"] = "0"
        answer = requests.request(
            environ["REQUEST_METHOD"],
            f"http://{address}{environ['REQUEST_URI']}",
            headers=headers,
            data=body,
            timeout=300,
            stream=True,
            allow_redirects=False,
        )
        content = change(environ["QUERY_STRING"], answer.raw.read())
        sent = [(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP]
        if environ["REQUEST_METHOD"] != "HEAD":
            sent = [(k, v) for k, v in sent if k.lower() != "content-length"]
            sent.append(("Content-Length", str(len(content))))
        start_response(f"{answer.status_code} {answer.reason}", sent)
        return [content]

    return forward


def read_body(environ: dict[str, Any]) -> bytes:
    """Return a request's whole body."""
    is_chunked = environ.get("HTTP_TRANSFER_ENCODING") == "chunked"
    size = -1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(size)
    return body
