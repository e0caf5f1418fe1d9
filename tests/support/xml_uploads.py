"""What Cloud Storage's XML API has and fake-gcs-server lacks: uploads, and lists from a name on.

https://cloud.google.com/storage/docs/xml-api/reference-methods
"""

import io
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlencode
from xml.etree import ElementTree

from tests.support.http_forwarding import Application, read_body

_XML: Final = ("Content-Type", "application/xml")


@dataclass
class XmlUploads:
    """A WSGI application that takes uploads, and leaves other requests to another one.

    Attributes:
        application: answers requests of the JSON API.
        bucket: the name of the only bucket.
    """

    application: Application
    bucket: str
    _parts: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = {
            name: values[0]
            for name, values in parse_qs(environ["QUERY_STRING"], keep_blank_values=True).items()
        }
        if "list-type" in query and path.strip("/") != self.bucket:
            missing = "<Error><Code>NoSuchBucket</Code></Error>"
            return _answer(start_response, "404 Not Found", missing)
        if method not in ("PUT", "POST", "DELETE") or not path.startswith(f"/{self.bucket}/"):
            return self.application(environ, start_response)
        name = path.removeprefix(f"/{self.bucket}/")
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self._parts[upload] = {}
            made = f"<UploadId>{upload}</UploadId>"
            return _answer(start_response, "200 OK", f"<Result>{made}</Result>")
        if "partNumber" in query:
            number, content = int(query["partNumber"]), read_body(environ)
            self._parts[query["uploadId"]][number] = content
            return _answer(start_response, "200 OK", "", ("ETag", f'"{number}"'))
        if "uploadId" in query:
            read_body(environ)
            parts = self._parts.pop(query["uploadId"], {})
            if method == "DELETE":
                return _answer(start_response, "204 No Content", "")
            whole = b"".join(parts[number] for number in sorted(parts))
            return self._upload(environ, name, whole, start_response)
        if method == "PUT":
            return self._upload(environ, name, read_body(environ), start_response)
        return self.application(environ, start_response)

    def _upload(
        self, environ: dict[str, Any], name: str, content: bytes, start_response: Any
    ) -> Iterable[bytes]:
        """Upload an object by the JSON API."""
        query = {"uploadType": "media", "name": name}
        generation = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        if generation is not None:
            query["ifGenerationMatch"] = generation
        text = urlencode(query)
        request = {
            **environ,
            "REQUEST_METHOD": "POST",
            "REQUEST_URI": f"/upload/storage/v1/b/{self.bucket}/o?{text}",
            "QUERY_STRING": text,
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content),
        }
        request.pop("HTTP_TRANSFER_ENCODING", None)
        started: list[tuple[str, list[tuple[str, str]]]] = []
        answer = b"".join(self.application(request, lambda *start: started.append(start)))
        status, headers = started[0]
        if not status.startswith("200"):
            start_response(status, headers)
            return [answer]
        made = json.loads(answer)
        etag = f'"{made["etag"]}"'
        body = f"<Result><ETag>{made['etag']}</ETag></Result>"
        of_object = ("ETag", etag), ("x-goog-generation", made["generation"])
        return _answer(start_response, status, body, *of_object)


def _answer(
    start_response: Any, status: str, body: str, *headers: tuple[str, str]
) -> Iterable[bytes]:
    content = body.encode()
    start_response(status, [_XML, ("Content-Length", str(len(content))), *headers])
    return [content]


def from_name(query: str, content: bytes) -> bytes:
    """Return a list of objects after the name that a query has, or what it was."""
    names = parse_qs(query).get("start-after")
    if names is None:
        return content
    listed = ElementTree.fromstring(content)
    for entry in listed.findall("Contents"):
        if entry.findtext("Key", "") <= names[0]:
            listed.remove(entry)
    return ElementTree.tostring(listed)
