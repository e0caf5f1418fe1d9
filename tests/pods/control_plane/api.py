"""A client of Kubernetes' API, and the command kubectl."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import requests

from tests.pods.control_plane.programs import programs

Object = dict[str, Any]
STRATEGIC: Final = "application/strategic-merge-patch+json"
_TIMEOUT_S: Final = 60


class RefusedError(Exception):
    """The API server refused a request.

    Attributes:
        code: HTTP's status.
        status: the server's answer, of Kubernetes' kind Status.
    """

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(f"{code} {status.get('reason', '')}: {status.get('message', '')}")
        self.code, self.status = code, status


class Api:
    """A client of the API server; requests from several threads are allowed.

    Args:
        url: of the server.
        authority: the certificate of its authority.
        certificate: the user's certificate and key; none for a user with a token.
        token: a service account's.
    """

    def __init__(
        self,
        url: str,
        authority: Path,
        certificate: tuple[Path, Path] | None = None,
        token: str = "",
    ) -> None:
        self._url, self._authority = url, authority
        self._options: dict[str, Any] = {"verify": str(authority), "timeout": _TIMEOUT_S}
        if certificate is not None:
            self._options["cert"] = tuple(map(str, certificate))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def with_token(self, token: str) -> Api:
        """Return a client of the same server that has a service account's token."""
        return Api(self._url, self._authority, token=token)

    def text(self, path: str) -> str:
        """Return what the server says at a path.

        Raises:
            RefusedError: the server refuses.
            OSError: it does not answer.
        """
        return self._send("GET", path).text

    def get(self, path: str, **query: str) -> Object:
        """Return an object or a list of objects; errors as with `text`."""
        return self._json("GET", path, params=query)

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object, and return it as the server has it; errors as with `text`."""
        return self._json("POST", path, json=body, params=query)

    def patch(self, path: str, body: Object, content_type: str = STRATEGIC) -> Object:
        """Change an object, and return it as the server has it; errors as with `text`."""
        headers = {"Content-Type": content_type}
        return self._json("PATCH", path, data=json.dumps(body), headers=headers)

    def delete(self, path: str, body: Object | None = None) -> Object:
        """Delete an object, or ask for its end; errors as with `text`."""
        return self._json("DELETE", path, json=body)

    def watch(self, path: str, seconds: int, **query: str) -> Iterator[tuple[str, Object]]:
        """Yield the objects that are there, and what happens to them for some seconds.

        Yields:
            ADDED, MODIFIED or DELETED, and the object.
        """
        query |= {"watch": "1", "timeoutSeconds": str(seconds)}
        answer = self._send("GET", path, params=query, stream=True)
        with answer:
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def _json(self, method: str, path: str, **options: Any) -> Object:
        answer: Object = self._send(method, path, **options).json()
        return answer

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {**self._headers, **options.pop("headers", {})}
        answer = requests.request(
            method, f"{self._url}{path}", headers=headers, **{**self._options, **options}
        )
        if not answer.ok:
            try:
                status = answer.json()
            except requests.JSONDecodeError:
                status = {"message": answer.text}
            raise RefusedError(answer.status_code, status)
        return answer


class KubectlError(Exception):
    """The command failed; the message is what it wrote."""


class Kubectl:
    """The command kubectl, in a namespace.

    Args:
        kubeconfig: a file that names server and user.
        namespace: where its commands look.

    Attributes:
        warnings: what the API server and the command warned of.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig, self.namespace = kubeconfig, namespace
        self.warnings: list[str] = []

    def within(self, namespace: str) -> Kubectl:
        """Return the command in another namespace; both have the same list of warnings."""
        other = Kubectl(self._kubeconfig, namespace)
        other.warnings = self.warnings
        return other

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command, and return its output.

        Raises:
            KubectlError: the command failed.
        """
        options = ["--kubeconfig", str(self._kubeconfig), "--namespace", self.namespace]
        options += ["--cache-dir", str(self._kubeconfig.parent / "kubectl-cache")]
        done = subprocess.run(
            [str(programs() / "kubectl"), *options, *arguments],
            input=stdin,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.warnings += re.findall(r"^Warning: .*$", done.stderr, re.MULTILINE)
        if done.returncode != 0:
            raise KubectlError(done.stdout + done.stderr)
        return done.stdout

    def json(self, *arguments: str, stdin: str = "") -> Object:
        """Run a command such as `get`, and return the object that it prints."""
        answer: Object = json.loads(self(*arguments, "-o", "json", stdin=stdin))
        return answer
