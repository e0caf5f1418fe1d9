"""A client of a schema registry, of which it needs one call: to register a schema.

The protocol is that of Confluent's Schema Registry, which others speak, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import requests

from slackwater.spark_sink.errors import PublishError, SchemaRefusedError

_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_HEADERS: Final = {"Content-Type": _TYPE, "Accept": _TYPE}
_TIMEOUT_S: Final = 10.0
_REFUSED: Final = (401, 403, 404, 409, 422)


class SchemaRegistry:
    """A registry; a schema that it has taken is not sent again.

    Args:
        url: of the registry; a name and a password in it are sent as basic authentication.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._ids: dict[tuple[str, str], int] = {}

    def require_answer(self) -> None:
        """Ask it anything.

        Raises:
            SchemaRefusedError: it does not answer this user, or is no registry.
            PublishError: it can't be reached.
        """
        self._request(
            "", lambda: requests.get(f"{self._url}/subjects", headers=_HEADERS, timeout=_TIMEOUT_S)
        )

    def register(self, subject: str, schema: Any) -> int:
        """The schema's number; it is registered where it is not yet.

        Raises:
            SchemaRefusedError: the registry does not take it, or not from this user.
            PublishError: the registry can't be reached.
        """
        text = json.dumps(schema)
        if (subject, text) not in self._ids:
            answer = self._request(
                f", subject {subject}",
                lambda: requests.post(
                    f"{self._url}/subjects/{quote(subject, safe='')}/versions",
                    json={"schema": text},
                    headers=_HEADERS,
                    timeout=_TIMEOUT_S,
                ),
            )
            self._ids[subject, text] = int(answer["id"])
        return self._ids[subject, text]

    def _request(self, what: str, ask: Callable[[], requests.Response]) -> Any:
        # Not by its URL: that may hold a password.
        where = f"the schema registry{what}"
        try:
            answer = ask()
        except requests.RequestException as error:
            raise PublishError(
                f"{where}: it can't be reached ({type(error).__name__}).",
                "Look whether sink.confluent_schema_registry names it, and whether it runs",
            ) from error
        message = f"{where}: it answers {answer.status_code}: {answer.text[:500]}"
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
