"""A stand-in for Kubernetes' API server, as far as Spark's driver uses it: objects with watches,
rights by the Roles among them, and pods only if they are `restricted`."""

import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.pods.objects import ConflictError, Object, Objects, is_selected
from tests.support.pod_security import violations

# Another proof may run beside this one.
ADDRESS: Final = f"127.0.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
NAMES: Final = ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the API.

    Attributes:
        account: the service account whose token it has.
        verb: as Roles name it.
        resource, namespace, name: what it is about; the name is empty for many objects.
    """

    account: str
    verb: str
    resource: str
    namespace: str
    name: str


@dataclass
class Cluster:
    """What the API server serves, and what it was asked.

    Attributes:
        objects: its objects; those of the chart are among them.
        asked: each request's account, verb and resource.
        refused: what was forbidden, and why.
    """

    objects: Objects = field(default_factory=Objects)
    asked: set[tuple[str, str, str]] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def token(self, pod: Object) -> str:
        """Return the name of a pod's service account, which is its token, too."""
        name: str = pod["spec"]["serviceAccountName"]
        return name

    def is_allowed(self, request: Request) -> bool:
        """Return whether a Role of the account's allows the request."""
        for binding in self.objects.select("rolebindings", request.namespace):
            if request.account not in [subject["name"] for subject in binding["subjects"]]:
                continue
            role = self.objects.get("roles", request.namespace, binding["roleRef"]["name"])
            for rule in role["rules"] if role else ():
                if request.resource in rule["resources"] and request.verb in rule["verbs"]:
                    return True
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, cluster: Cluster, *arguments: Any) -> None:
        self._cluster = cluster
        super().__init__(*arguments)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if self.headers.get("Upgrade", "").lower() == "websocket":
            # Then the client watches by plain HTTP.
            self._send(200, {"kind": "Status"})
            return
        request = self._request(url.path, query)
        cluster = self._cluster
        cluster.asked.add((request.account, request.verb, request.resource))
        broken = violations(body["spec"]) if request.verb == "create" and "spec" in body else []
        if not cluster.is_allowed(request) or (request.resource == "pods" and broken):
            cluster.refused.append(f"{request} {broken}")
            self._send(403, _status(403, "Forbidden", f"{request} is forbidden: {broken}"))
        elif request.verb == "watch":
            self._watch(request, query)
        else:
            self._do(request, query, body)

    def _request(self, path: str, query: dict[str, str]) -> Request:
        parts = path.strip("/").split("/")
        parts = parts[2 if parts[0] == "api" else 3 :]
        namespace = parts[1] if parts[:1] == ["namespaces"] and len(parts) > 2 else ""
        parts = parts[2:] if namespace else parts
        resource, name = parts[0] if parts else "", parts[1] if len(parts) > 1 else ""
        match self.command:
            case "GET":
                verb = "get" if name else "watch" if "watch" in query else "list"
            case "DELETE":
                verb = "delete" if name else "deletecollection"
            case method:
                verb = _VERBS[method]
        account = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return Request(account, verb, resource, namespace, name)

    def _do(self, request: Request, query: dict[str, str], body: dict[str, Any]) -> None:
        objects, place = self._cluster.objects, (request.resource, request.namespace)
        selectors = query.get("labelSelector", ""), query.get("fieldSelector", "")
        match request.verb:
            case "create":
                try:
                    self._send(201, objects.create(*place, body))
                except ConflictError as error:
                    self._send(409, _status(409, "AlreadyExists", str(error)))
                return
            case "list":
                items = objects.select(*place, *selectors)
                metadata = {"resourceVersion": str(objects.version)}
                self._send(200, {"kind": "List", "metadata": metadata, "items": items})
                return
            case "deletecollection":
                for item in objects.select(*place, *selectors):
                    objects.delete(*place, item["metadata"]["name"], body.get("gracePeriodSeconds"))
                self._send(200, {"kind": "Status", "status": "Success"})
                return
            case "patch" | "update":
                answer = objects.merge(*place, request.name, body)
            case _:
                answer = objects.get(*place, request.name)
        if request.verb == "delete" and answer is not None:
            objects.delete(*place, request.name, body.get("gracePeriodSeconds"))
        if answer is None:
            self._send(404, _status(404, "NotFound", f"{request.name} not found"))
        else:
            self._send(200, answer)

    def _watch(self, request: Request, query: dict[str, str]) -> None:
        objects = self._cluster.objects
        after = int(query.get("resourceVersion") or 0) or objects.version
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        selectors = query.get("labelSelector", ""), query.get("fieldSelector", "")
        try:
            for event in objects.watch(after):
                if event is None or event[2] != request.resource:
                    continue
                body = event[3]
                of_namespace = body["metadata"]["namespace"] == request.namespace
                if of_namespace and is_selected(body, *selectors):
                    line = json.dumps({"type": event[1], "object": body}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
        except OSError:
            self.close_connection = True

    def _send(self, code: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**failure, "code": code, "reason": reason, "message": message}


@contextmanager
def serving(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """Serve a cluster at https://kubernetes.default.svc; yield the certificate of its authority."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    names = ",".join(f"DNS:{name}" for name in NAMES)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=stand-in", "-addext", f"subjectAltName={names},IP:{ADDRESS}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer((ADDRESS, 443), partial(_Handler, cluster))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    threading.Thread(target=server.serve_forever, name="api-server", daemon=True).start()
    try:
        yield certificate
    finally:
        server.shutdown()
        server.server_close()
