"""Requests of the Storage Write API that append rows to a table, and when they are repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from google.api_core.exceptions import InvalidArgument, NotFound
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, AppendRowsResponse
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from slackwater.spark_sink.errors import BigQueryError, PublishError
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.clients import Clients, requests_to

# In bytes: BigQuery takes requests of 20 MB, and advises 10 MB.
REQUEST_MAX: Final = 8 << 20
# An answer that does not come.
TIMEOUT_S: Final = 60.0
# gRPC's codes of what passes, as appends answer it.
_ALREADY_EXISTS: Final = 6
_PASSING: Final = frozenset({4, 8, 10, 13, 14})
_ATTEMPTS: Final = 4
# This service learns of a table's new columns minutes after the table has them.
_COLUMNS_S_MAX: Final = 600.0
_UNKNOWN_COLUMN: Final = "more fields than"
_WAIT_S_MAX: Final = 8.0


class Appends:
    """The requests that append rows to a table.

    Args:
        clients: of the table's dataset.
        address: the table's.
    """

    def __init__(self, clients: Clients, address: TableAddress) -> None:
        self.clients = clients
        self.address = address

    def append(self, make: Callable[[], AppendRowsRequest], *, is_new: bool) -> None:
        """Append rows by a request, which may be repeated; make() is called for each attempt.

        Args:
            make: returns the request.
            is_new: the stream or its table may not be known to the service yet.

        Raises:
            BigQueryError: BigQuery refuses the rows.
            PublishError: it fails.
        """
        for attempt in attempts():
            with attempt, requests_to(self.address, "appending rows"), self._may_be_new(is_new):
                request = make()
                name = str(request.write_stream)
                answers = self.clients.rows.append_rows(
                    iter([request]),
                    # The client's own way would send nothing the second time.
                    retry=None,
                    timeout=TIMEOUT_S,
                    metadata=[("x-goog-request-params", f"write_stream={quote(name, safe='')}")],
                )
                answer = next(iter(answers), None)
                if answer is None:
                    raise PublishError(f"{name}: no answer came.")
                self._require_appended(name, answer)

    @contextmanager
    def _may_be_new(self, is_new: bool) -> Iterator[None]:
        """Let requests that come too soon after a table, stream or column was made be repeated."""
        try:
            yield
        except InvalidArgument as error:
            if _UNKNOWN_COLUMN not in error.message:
                raise
            raise _UnknownColumnError(error.message) from error
        except NotFound as error:
            if not is_new:
                raise
            raise PublishError(f"{self.address.id}: {error.message}") from error

    def _require_appended(self, name: str, answer: AppendRowsResponse) -> None:
        if _UNKNOWN_COLUMN in answer.error.message:
            raise _UnknownColumnError(f"{name}: {answer.error.message}")
        if answer.row_errors:
            first = answer.row_errors[0]
            raise BigQueryError(f"{self.address.id}: a row: {first.message}.")
        if answer.error.code in _PASSING:
            raise PublishError(f"{name}: {answer.error.message}")
        if answer.error.code not in (0, _ALREADY_EXISTS):
            raise BigQueryError(f"{name}: {answer.error.message}")


class _UnknownColumnError(PublishError):
    """The service does not know a column yet that the table has."""


def _is_last(state: RetryCallState) -> bool:
    error = state.outcome and state.outcome.exception()
    if isinstance(error, _UnknownColumnError):
        return (state.seconds_since_start or 0.0) > _COLUMNS_S_MAX
    return state.attempt_number >= _ATTEMPTS


def attempts() -> Retrying:
    """Return the attempts of a request that may be repeated."""
    return Retrying(
        stop=_is_last,
        wait=wait_random_exponential(multiplier=0.5, max=_WAIT_S_MAX),
        retry=retry_if_exception_type(PublishError),
        reraise=True,
    )
