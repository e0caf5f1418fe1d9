"""The client of a metadata store in Spanner, whose endpoint stands in the store's URL.

The URL's parameters are the keys of the section source:
`spanner+spanner:///projects/P/instances/I/databases/D?endpoint=HOST:PORT&ca_certificate=FILE`.
"""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine

from slackwater.endpoint import Endpoint, file_versions, or_emulator
from slackwater.state.errors import StoreUnreachableError

if TYPE_CHECKING:
    from google.cloud.spanner import Client

_FLAGS: Final = ("plaintext", "anonymous")
# The host is the key endpoint.
_KEYS: Final = ["endpoint", *(field.name for field in dataclasses.fields(Endpoint)[1:])]


def spanner_engine(url: URL) -> Engine:
    """Return an engine whose connections go to the URL's endpoint.

    Raises:
        ValueError: a parameter is unknown, or does not go with another.
        EndpointError: the environment names another server.
    """
    endpoint = or_emulator(_endpoint_of(url), os.environ)
    # Spanner's transactions are serializable, and its sessions need no ping.
    engine = sa.create_engine(url.set(query={}))
    project = str(url.database).split("/")[1]

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        record.info["files"] = file_versions(endpoint)
        try:
            _require_readable(endpoint)
            options["client"] = _client(endpoint, project)
        except OSError as error:
            raise StoreUnreachableError(
                f"{error.filename}, a file of the metadata store's endpoint, can't be read:"
                f" {error.strerror}.",
                "It has to be there on each machine that uses the store, executors too",
            ) from error

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection._transaction_helper.retry_transaction = _end_aborted

    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, record: Any, _proxy: Any) -> None:
        # A client keeps the certificate with which it was made.
        if record.info["files"] != file_versions(endpoint):
            raise sa.exc.DisconnectionError("the endpoint's files have changed")

    return engine


def _end_aborted() -> None:
    """End an aborted transaction, so that the store runs its work again.

    The library would run the statements again, compare the rows that were read, and commit what was
    decided by them. It passes over rows that have come after those: two parents that end at once
    would both be the first, and nobody would claim their child.
    """
    from google.cloud.spanner_dbapi.exceptions import RetryAborted

    raise RetryAborted("the transaction was aborted")


def _endpoint_of(url: URL) -> Endpoint:
    values: dict[str, Any] = {}
    if twice := [key for key, text in url.query.items() if isinstance(text, tuple)]:
        raise ValueError(f"it has the parameter {twice[0]!r} twice")
    for key, text in url.query.items():
        if key not in _KEYS:
            raise ValueError(f"it has no parameter {key!r}; known: {', '.join(_KEYS)}")
        if key in _FLAGS and text not in ("true", "false"):
            raise ValueError(f"{key} is true or false")
        values["host" if key == "endpoint" else key] = text == "true" if key in _FLAGS else text
    endpoint = Endpoint(**values)
    if endpoint.anonymous and not endpoint.ca_certificate:
        raise ValueError("anonymous=true needs ca_certificate, for Google's client")
    if (endpoint.ca_certificate or endpoint.client_certificate) and not endpoint.anonymous:
        raise ValueError(
            "certificates go with anonymous=true. Google's client takes authorities beside its own"
            " credentials from GRPC_DEFAULT_SSL_ROOTS_FILE_PATH only"
        )
    return endpoint


def _require_readable(endpoint: Endpoint) -> None:
    """Read the files that Google's client will read when it connects."""
    for file in (endpoint.ca_certificate, endpoint.client_certificate, endpoint.client_key):
        if file is not None:
            Path(file).read_bytes()


def _client(endpoint: Endpoint, project: str) -> "Client":
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.spanner import Client

    from slackwater.google_credentials import SPANNER_SCOPES, google_credentials

    where = {"api_endpoint": endpoint.target}
    if endpoint.plaintext:
        # Of an endpoint with these credentials the client thinks that it has no TLS.
        return Client(
            project,
            credentials=AnonymousCredentials(),
            client_options=where,
            disable_builtin_metrics=True,
        )
    if endpoint.anonymous:
        client = Client(
            client_options=where,
            instance_type="omni",
            ca_certificate=endpoint.ca_certificate,
            client_certificate=endpoint.client_certificate,
            client_key=endpoint.client_key,
        )
        # It takes for granted that the only project is `default`.
        client.project = project
        return client
    if endpoint.universe_domain is not None:
        where["universe_domain"] = endpoint.universe_domain
    return Client(
        project, credentials=google_credentials(endpoint, SPANNER_SCOPES), client_options=where
    )
