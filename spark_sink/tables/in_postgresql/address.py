"""The URL of a PostgreSQL database."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.formats import POSTGRESQL
from slackwater.spark_sink.tables.by_transaction.names import digest

# In bytes; PostgreSQL cuts longer names (its documentation, "Identifiers and Key Words").
NAME_MAX: Final = 63
# What libpq would wait for, or not, for much longer: in seconds, and in milliseconds.
_DEFAULTS: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    "tcp_user_timeout": "60000",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}


def require_url(path: str) -> None:
    """Require a URL of libpq's with a database (PostgreSQL's documentation, "Connection URIs").

    Raises:
        PostgresqlError: it is another one.
    """
    url = urlsplit(path)
    if url.scheme != POSTGRESQL or url.fragment or not url.path.strip("/"):
        raise PostgresqlError(
            f"path is {path}, which names no database of PostgreSQL's:"
            f" {POSTGRESQL}://USER@HOST:5432/DATABASE."
        )


def connection_url(path: str, application: str, options: str = "") -> str:
    """Return the URL to connect to.

    Args:
        path: the database's.
        application: names the connection to the server.
        options: more of the session, as in -c jit=off.
    """
    url = urlsplit(path)
    # Not parse_qsl(): to libpq a plus is a plus.
    pairs = (pair.partition("=") for pair in url.query.split("&") if pair)
    asked = {unquote(name): unquote(value) for name, _, value in pairs}
    if len(application.encode()) > NAME_MAX:
        # The server would cut it, and two could be the same.
        application = f"{application[: NAME_MAX - 17]} {digest(application)}"
    # The driver sends texts in UTF-8, whatever the environment says.
    own = {"application_name": application, "client_encoding": "UTF8"}
    if options:
        own["options"] = f"{asked.get('options', '')} {options}".strip()
    query = urlencode({**_DEFAULTS, **asked, **own}, quote_via=quote)
    return urlunsplit(url._replace(query=query))
