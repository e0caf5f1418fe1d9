"""The client of a schema registry.

It speaks the protocol of Confluent's Schema Registry, which other registries implement, too.
"""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import requests

from slackwater.spark_sink.errors import PublishError, SchemaRefusedError

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_HEADERS: Final = {"Content-Type": _TYPE, "Accept": _TYPE}
_TIMEOUT_S: Final = 10.0
_NOT_FOUND: Final = 404
_REFUSED: Final = (401, 403, 404, 409, 422)


class SchemaRegistry:
    """A schema registry; a registered schema is not sent again.

    Args:
        url: the registry's; a user name and password in it are sent as basic authentication.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._ids: dict[tuple[str, str], int] = {}
        self._latest: dict[str, tuple[int, str]] = {}

    def require_answer(self) -> None:
        """Check that the registry answers.

        Raises:
            SchemaRefusedError: it rejects this user, or is not a schema registry.
            PublishError: it can't be reached.
        """
        self._request(
            "", lambda: requests.get(f"{self._url}/subjects", headers=_HEADERS, timeout=_TIMEOUT_S)
        )

    def register(self, subject: str, schema: str, schema_type: str | None = None) -> int:
        """Register a schema unless it is registered, and return its number.

        Args:
            subject: that it is a version of.
            schema: its text.
            schema_type: the format as registries name it; None for Avro.

        Raises:
            SchemaRefusedError: the registry rejects it, or this user.
            PublishError: the registry can't be reached.
        """
        if (subject, schema) not in self._ids:
            of_type = {"schemaType": schema_type} if schema_type else {}
            answer = self._request(
                f", subject {subject}",
                lambda: requests.post(
                    f"{self._url}/subjects/{quote(subject, safe='')}/versions",
                    json={"schema": schema, **of_type},
                    headers=_HEADERS,
                    timeout=_TIMEOUT_S,
                ),
            )
            self._ids[subject, schema] = int(answer["id"])
        self._latest[subject] = (self._ids[subject, schema], schema)
        return self._ids[subject, schema]

    def latest(self, subject: str) -> tuple[int, str] | None:
        """Return the number and the schema last registered for a subject; None if there is none.

        Raises:
            SchemaRefusedError: the registry rejects this user.
            PublishError: the registry can't be reached.
        """
        if subject not in self._latest:
            answer = self._request(
                f", subject {subject}",
                lambda: requests.get(
                    f"{self._url}/subjects/{quote(subject, safe='')}/versions/latest",
                    headers=_HEADERS,
                    timeout=_TIMEOUT_S,
                ),
                may_be_missing=True,
            )
            if answer is None:
                return None
            self._latest[subject] = (int(answer["id"]), answer["schema"])
        return self._latest[subject]

    def _request(
        self, place: str, send: Callable[[], requests.Response], *, may_be_missing: bool = False
    ) -> Any:
        # Without its URL, which may contain a password.
        where = f"the schema registry{place}"
        try:
            answer = send()
        except requests.RequestException as error:
            raise PublishError(
                f"{where}: it can't be reached ({type(error).__name__}).",
                "Check sink.confluent_schema_registry, and that the registry is running",
            ) from error
        if may_be_missing and answer.status_code == _NOT_FOUND:
            return None
        message = f"{where}: it answered {answer.status_code}: {answer.text[:500]}"
        if answer.status_code in _REFUSED:
            raise SchemaRefusedError(
                message,
                "The schema comes from the table's columns: let the registry's compatibility"
                " rule allow it, and sink.confluent_schema_registry name a user who may register",
            )
        try:
            answer.raise_for_status()
            return answer.json()
        except requests.RequestException as error:
            raise PublishError(message, "The registry's log may say more") from error
