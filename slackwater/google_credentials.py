"""Google's credentials for an endpoint."""

import threading
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import google.auth
import grpc
from google.auth import impersonated_credentials
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport.grpc import AuthMetadataPlugin
from google.auth.transport.requests import Request

from slackwater.endpoint import Endpoint

# The second one is for schemas: to list the statements that changed one, or to make a store's.
SPANNER_SCOPES: Final = (
    "https://www.googleapis.com/auth/spanner.data",
    "https://www.googleapis.com/auth/spanner.admin",
)
# The second one is for the properties of a table's change stream.
BIGTABLE_SCOPES: Final = (
    "https://www.googleapis.com/auth/bigtable.data.readonly",
    "https://www.googleapis.com/auth/bigtable.admin.table",
)
_REQUEST: Final = Request()
_FETCHING: Final = threading.Lock()
_TO_IMPERSONATE: Final = ("https://www.googleapis.com/auth/cloud-platform",)


def google_credentials(endpoint: Endpoint, scopes: Sequence[str]) -> Credentials:
    """Return the credentials to send; those of a file are read, and no token is fetched.

    Args:
        endpoint: which is not anonymous.
        scopes: of the tokens.

    Raises:
        GoogleAuthError: there are none, or they are of another universe domain.
    """
    account = endpoint.impersonate_service_account
    credentials = _own_credentials(endpoint, scopes if account is None else _TO_IMPERSONATE)
    domain = endpoint.universe_domain
    if domain is not None and credentials.universe_domain != domain:
        raise DefaultCredentialsError(
            f"the credentials are of the universe domain {credentials.universe_domain}, and"
            f" universe_domain is {domain}"
        )
    if account is not None:
        quota_project = endpoint.quota_project or getattr(credentials, "quota_project_id", None)
        return impersonated_credentials.Credentials(
            credentials, account, list(scopes), quota_project_id=quota_project
        )
    return credentials


def call_credentials(credentials: Credentials) -> grpc.CallCredentials:
    """Return what adds a token to each call of a channel."""
    return grpc.metadata_call_credentials(AuthMetadataPlugin(credentials, Request()))


def token_headers(credentials: Credentials) -> list[str]:
    """Return the headers that credentials add to a call; unless has_token(), one is fetched.

    Raises:
        GoogleAuthError: none can be had.
    """
    headers: dict[str, str] = {}
    # Of many calls one fetches it, and the others find it then.
    with nullcontext() if has_token(credentials) else _FETCHING:
        credentials.before_request(_REQUEST, "POST", "", headers)
    return [f"{name}: {value}" for name, value in headers.items()]


def has_token(credentials: Credentials) -> bool:
    """Return whether credentials have a token that stays valid for minutes."""
    return credentials.token_state is TokenState.FRESH


def _own_credentials(endpoint: Endpoint, scopes: Sequence[str]) -> Credentials:
    options: dict[str, Any] = {
        "scopes": list(scopes),
        "quota_project_id": endpoint.quota_project,
    }
    if endpoint.credentials_file is None:
        default: Credentials = google.auth.default(**options)[0]
        return default
    with warnings.catch_warnings():
        # It warns of files that others have written. This one is named by the settings.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            credentials: Credentials = google.auth.load_credentials_from_file(
                endpoint.credentials_file, **options
            )[0]
        except OSError as error:
            raise DefaultCredentialsError(
                f"{endpoint.credentials_file} can't be read: {error.strerror}"
            ) from error
    return credentials
