"""BigQuery's clients, and its errors as ours."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import grpc
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_RETRY
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

from slackwater.spark_sink.errors import BigQueryError, PublishError
from slackwater.spark_sink.output.bigquery.address import ENDPOINT, STORAGE_ENDPOINT, TableAddress

_PLAIN: Final = "http://"
# After that the pipeline tries the epoch again, and says so.
_RETRY_S: Final = 30.0
# Of a transaction, in the error's text: it has no other mark.
_CONFLICT: Final = "concurrent update"
# In the error's text, before the id, which may have any word.
_NO_DATASET: Final = "not found: dataset"
# What a project asks for that others' requests are billed to.
_QUOTA_RIGHT: Final = "serviceusage"
# Reasons of refusals that pass (BigQuery's documentation, "Error messages").
_PASSING: Final = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "quotaExceeded",
        "rateLimitExceeded",
        "resourcesExceeded",
        "tableUnavailable",
    }
)


@dataclass(frozen=True)
class Clients:
    """The clients of BigQuery's two services, with the credentials of the environment.

    Attributes:
        project: the id of the project with the dataset.
        options: addresses of services other than the public ones; http:// ones have no TLS, and
            get no credentials.
    """

    project: str
    options: Mapping[str, str]

    @cached_property
    def tables(self) -> bigquery.Client:
        """The client for tables and queries."""
        endpoint = self.options.get(ENDPOINT)
        return bigquery.Client(
            self.project,
            AnonymousCredentials() if _is_plain(endpoint) else None,
            client_options=None if endpoint is None else {"api_endpoint": endpoint},
        )

    @property
    def retry(self) -> Retry:
        """The policy of repeating requests for tables and queries; the client's takes minutes."""
        return DEFAULT_RETRY.with_timeout(_RETRY_S)

    @cached_property
    def rows(self) -> BigQueryWriteClient:
        """The client that appends rows."""
        endpoint = self.options.get(STORAGE_ENDPOINT)
        if endpoint is None or not _is_plain(endpoint):
            options: Any = None if endpoint is None else {"api_endpoint": endpoint}
            return BigQueryWriteClient(client_options=options)
        transport = BigQueryWriteClient.get_transport_class("grpc")
        channel = grpc.insecure_channel(endpoint.removeprefix(_PLAIN))
        return BigQueryWriteClient(transport=transport(channel=channel))


def _is_plain(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith(_PLAIN)


@contextmanager
def requests_to(address: TableAddress, purpose: str) -> Iterator[None]:
    """Turn the errors of BigQuery's clients into ours.

    Args:
        address: the table's, for messages.
        purpose: what is asked, likewise.

    Raises:
        BigQueryError: it refuses: for want of rights or credentials, for a dataset that is not
            there, or because it can't hold the rows.
        PublishError: it fails, does not answer, or another transaction was first.
    """
    refusals = (exceptions.Forbidden, exceptions.NotFound, exceptions.BadRequest)
    try:
        yield
    except GoogleAuthError as error:
        raise BigQueryError(
            f"{address.id}: {purpose} failed: {error}.",
            "Give the process credentials: those of its machine, or GOOGLE_APPLICATION_CREDENTIALS",
        ) from error
    except refusals as error:
        if _CONFLICT in error.message or _reason(error) in _PASSING:
            raise PublishError(f"{address.id}: {purpose} failed: {error.message}.") from error
        raise BigQueryError(
            f"{address.id}: {purpose} was refused: {error.message}.", _advice(error, address)
        ) from error
    except (exceptions.GoogleAPIError, OSError) as error:
        raise PublishError(f"{address.id}: {purpose} failed: {error}.") from error


def _reason(error: Any) -> str:
    """Return the reason that the REST API gives; empty without one."""
    details = [detail for detail in error.errors if isinstance(detail, dict)]
    return str(details[0].get("reason", "")) if details else ""


def _advice(error: Exception, address: TableAddress) -> str:
    if isinstance(error, exceptions.Forbidden) and _QUOTA_RIGHT in str(error):
        return (
            "The project that is billed for requests needs roles/serviceusage.serviceUsageConsumer"
            " for these credentials; GOOGLE_CLOUD_QUOTA_PROJECT names another one"
        )
    if isinstance(error, exceptions.Forbidden):
        return (
            "It needs roles/bigquery.dataEditor on the dataset, and roles/bigquery.jobUser in the"
            " project"
        )
    if isinstance(error, exceptions.NotFound):
        text = error.message.lower()
        if "table" in text and _NO_DATASET not in text:
            return "Restore the table, as by BigQuery's time travel"
        return f"Make the dataset: bq mk --dataset {address.project}:{address.dataset}"
    return ""
