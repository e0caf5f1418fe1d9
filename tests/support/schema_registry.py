"""A schema registry for tests, whose compatibility rule is that a new schema reads the last one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote


class Registry:
    """The registered schemas, by number and by subject.

    Attributes:
        is_away: connections are closed without an answer.
        authorization: the header that requests must have; None for any.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, Any] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked = 0
        self.is_away = False
        self.authorization: str | None = None
        self._lock = Lock()
        self._numbers: dict[str, int] = {}

    def register(self, subject: str, text: str, schema_type: str = "AVRO") -> int | None:
        """Return the schema's number; None if it can't read what the last one wrote.

        Of schemas in Protobuf it takes all.
        """
        with self._lock:
            self.asked += 1
            schema = json.loads(text) if schema_type == "AVRO" else text
            versions = self.subjects.setdefault(subject, [])
            number = self._numbers.get(text, len(self._numbers) + 1)
            if number not in versions:
                is_avro = not isinstance(schema, str)
                if is_avro and versions and not reads(schema, self.schemas[versions[-1]]):
                    return None
                versions.append(number)
            self._numbers[text] = number
            self.schemas[number] = schema
            return number


def reads(reader: Any, writer: Any) -> bool:
    """Return whether one schema reads another's data, for the ways in which ours differ."""
    if isinstance(reader, list) and isinstance(writer, list):
        return all(any(reads(r, w) for r in reader) for w in writer)
    if not (isinstance(reader, dict) and isinstance(writer, dict)):
        return bool(reader == writer)
    if reader.get("type") != "record":
        return reader == writer
    written = {field["name"]: field["type"] for field in writer["fields"]}
    return reader["name"] == writer["name"] and all(
        reads(f["type"], written[f["name"]]) if f["name"] in written else "default" in f
        for f in reader["fields"]
    )


@contextmanager
def running_registry() -> Iterator[tuple[Registry, str]]:
    """Run a registry, and return it and its URL."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def parse_request(self) -> bool:
            if registry.is_away or not super().parse_request():
                self.close_connection = True
                return False
            expected = registry.authorization
            if expected is not None and self.headers.get("Authorization") != expected:
                self._answer(401, {"error_code": 401, "message": "Unauthorized"})
                return False
            return True

        def do_GET(self) -> None:
            if not self.path.endswith("/versions/latest"):
                self._answer(200, sorted(registry.subjects))
                return
            subject = unquote(self.path.split("/")[2])
            if subject not in registry.subjects:
                self._answer(404, {"error_code": 40401, "message": "Subject not found."})
                return
            number = registry.subjects[subject][-1]
            self._answer(200, {"id": number, "schema": json.dumps(registry.schemas[number])})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, _, subject, _ = self.path.split("/")
            number = registry.register(
                unquote(subject), body["schema"], body.get("schemaType", "AVRO")
            )
            if number is None:
                self._answer(409, {"error_code": 409, "message": "incompatible"})
            else:
                self._answer(200, {"id": number})

        def _answer(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
