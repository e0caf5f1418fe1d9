"""The socket on which the page, its API, the metrics and the probes are served."""

import socket

from slackwater.config.settings import Http
from slackwater.errors import HttpError


def listen(settings: Http) -> socket.socket:
    """Return a socket that has the address in the settings.

    Raises:
        HttpError: the address can't be listened on.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise HttpError(
            f"http.listen {settings.listen} can't be listened on: {error.strerror or error}.",
            "Choose another address or port, or stop the process that uses it",
        ) from error
    return listening
