"""BigQuery for the tests: the Storage Write API as its protocol says, over an emulator's tables.

The emulator (PyPI's bqemulator, in an environment of its own that `make test` makes) has tables
and SQL. Rows come by the server here, which holds buffered streams and loads what is flushed, and
has the newest change of each key of the tables with a primary key, as the emulator has not.
Each process can have a door of its own, at which requests are held back or answers are lost.
"""

import io
import json
import re
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from slackwater.spark_sink.output.bigquery.schema import schema_of
from slackwater.testing.emulator import free_port
from tests.support.http_forwarding import Application, forwarding_to, read_body
from tests.support.object_stores import listening, nothing
from tests.support.repository import ROOT

PROJECT: Final = "shop-prod"
DATASET: Final = "lake"
_PYTHON: Final = ROOT / ".venv-bigquery" / "bin" / "python"
_SERVICE: Final = "google.cloud.bigquery.storage.v1.BigQueryWrite"
_STARTED_S_MAX: Final = 120
# BigQuery takes requests of at least 10 MB with rows (its documentation, "Quotas and limits").
_OPTIONS: Final = (("grpc.max_receive_message_length", 10_000_000),)
# Of a table, as the REST API names them.
_FORGOTTEN: Final = ("tableConstraints", "maxStaleness")
# The key, on the wire, of the option google.cloud.bigquery.storage.v1.column_name.
_COLUMN_NAME: Final = b"\xaa\x9b\xbc\xc7\x0d"
Hook = Callable[[str, str], None]
# What the SQL of a job may be, besides a query.
_VERSIONS: Final = "versions"
_AS_OF: Final = re.compile(r"`([^`]+)` FOR SYSTEM_TIME AS OF TIMESTAMP_MICROS\((\d+)\)")
_KINDS: Final = ("BEGIN TRANSACTION", "ALTER TABLE", "CREATE")


@dataclass
class _Stream:
    table: str
    hidden: list[pa.RecordBatch] = field(default_factory=list)
    flushed: int = 0
    length: int = 0
    is_finalized: bool = False

    def require_open(self) -> None:
        """Refuse requests when it is finalized, as Beam's writer expects it of the service."""
        if self.is_finalized:
            raise ValueError("the stream is finalized")


@dataclass(frozen=True)
class _Change:
    sequence_number: str
    row: dict[str, Any]
    kind: str

    @property
    def number(self) -> list[int]:
        """The number by whose order changes of a key are applied."""
        return [int(section, 16) for section in self.sequence_number.split("/")]


@dataclass
class Door:
    """The two services as one process reaches them.

    Attributes:
        endpoint: the host and port of the Storage Write API.
        rest: the URL for tables and queries.
        before, after: called with a method and the name of its stream or table, or with the kind of
            a job and its SQL; an error that they raise is one of the network.
        requests: the methods and kinds that were called, in order.
    """

    endpoint: str = ""
    rest: str = ""
    before: Hook = nothing
    after: Hook = nothing
    requests: list[str] = field(default_factory=list)


class BigQueryServer:
    """The servers of one BigQuery, whose doors all lead to the same rows.

    Args:
        rest: the emulator's URL.

    Attributes:
        has_time_travel: tables can be read as of a time, by what transactions left in them. The
            emulator does not keep that of a script.
    """

    def __init__(self, rest: str) -> None:
        self.rest = rest
        self.has_time_travel = False
        # Of tables, by their ids, the times of versions and the tables that have them.
        self._versions: dict[str, list[tuple[int, str]]] = {}
        self.client = bigquery.Client(
            PROJECT, AnonymousCredentials(), client_options={"api_endpoint": rest}
        )
        self.client.create_dataset(DATASET)
        self._streams: dict[str, _Stream] = {}
        # Of tables, by their ids, what the emulator forgets.
        self._properties: dict[str, dict[str, Any]] = {}
        self._keyed: dict[str, dict[Any, _Change]] = {}
        self._lock = threading.Lock()

    def options(self, door: Door) -> dict[str, str]:
        """Return sink.storage_options for a process at a door."""
        return {
            "bigquery.endpoint": door.rest,
            "bigquery.storage.endpoint": f"http://{door.endpoint}",
        }

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        # Not query_and_wait(): the emulator has no error for it, and no rows.
        return [dict(row) for row in self.client.query(self._as_of(text)).result()]

    def _as_of(self, text: str) -> str:
        """Return SQL in which tables as of a time are those that have their versions."""

        def version(match: re.Match[str]) -> str:
            table, at_us = match[1], int(match[2])
            at = [name for time_us, name in self._versions.get(table, ()) if time_us <= at_us]
            if at:
                return f"`{at[-1]}`"
            if self.client.get_table(table).created.timestamp() > at_us / 1_000_000:
                raise ValueError(f"Invalid snapshot time of {table}")
            return f"(SELECT * FROM `{table}` WHERE FALSE)"

        return _AS_OF.sub(version, text)

    def _keep_versions(self, dataset: str) -> None:
        """Keep what tables are after a transaction."""
        self.client.create_dataset(_VERSIONS, exists_ok=True)
        names = {}
        for item in self.client.list_tables(dataset):
            table = f"{PROJECT}.{dataset}.{item.table_id}"
            names[table] = f"{PROJECT}.{_VERSIONS}.v_{uuid.uuid4().hex}"
            self.client.query(f"CREATE TABLE `{names[table]}` AS SELECT * FROM `{table}`").result()
        [now] = self.query("SELECT UNIX_MICROS(CURRENT_TIMESTAMP()) AS us")
        for table, name in names.items():
            self._versions.setdefault(table, []).append((now["us"], name))

    @property
    def streams(self) -> tuple[int, int]:
        """The number of streams of all processes, and of those that are finalized."""
        with self._lock:
            return len(self._streams), sum(s.is_finalized for s in self._streams.values())

    def remove_streams(self) -> None:
        """Have all streams gone, as BigQuery removes those that nobody uses."""
        with self._lock:
            self._streams.clear()

    @contextmanager
    def door(self) -> Iterator[Door]:
        """Serve both at ports of their own."""
        door = Door()
        # Each is held back as long as a test likes.
        server = grpc.server(ThreadPoolExecutor(16), options=_OPTIONS)
        server.add_generic_rpc_handlers([self._handlers(door)])
        door.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            with listening(self._jobs(door)) as door.rest:
                yield door
        finally:
            server.stop(None)

    def _jobs(self, door: Door) -> Application:
        """Return the REST API, of which queries, transactions and DDL are noted."""
        forward = forwarding_to(self.rest.removeprefix("http://"))

        def noting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            body: Any = read_body(environ)
            environ["wsgi.input"] = io.BytesIO(body)
            if "/tables" in environ["PATH_INFO"]:
                return self._table(forward, door, body, environ, start_response)
            text = query_of(body) if environ["REQUEST_METHOD"] == "POST" else None
            if text is None:
                return forward(environ, start_response)
            kind = next((kind for kind in _KINDS if kind in text), "SELECT")
            door.requests.append(kind)
            try:
                door.before(kind, text)
                if self.has_time_travel and _AS_OF.search(text):
                    body = body.decode().replace(json.dumps(text), json.dumps(self._as_of(text)))
                    environ["wsgi.input"] = io.BytesIO(body.encode())
                    environ["CONTENT_LENGTH"] = str(len(body))
                answer = forward(environ, start_response)
                if self.has_time_travel and kind == "BEGIN TRANSACTION":
                    self._keep_versions(text.partition("._slackwater")[0].rpartition(".")[2])
                door.after(kind, text)
            except Exception as error:  # noqa: BLE001 - whatever a test raises
                start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
                return [str(error).encode()]
            return answer

        return noting

    def _handlers(self, door: Door) -> grpc.GenericRpcHandler:
        def through(call: Callable[[Any], Any], name: str, request: Any, context: Any) -> Any:
            keys = ("write_stream", "parent", "name")
            stream = next(filter(None, (getattr(request, key, None) for key in keys)))
            try:
                door.requests.append(name)
                door.before(name, str(stream))
                answer = call(request)
                door.after(name, str(stream))
            except KeyError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except FileExistsError as error:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
            except Exception as error:  # noqa: BLE001 - whatever a test raises
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            return answer

        def unary(name: str, request: Any, call: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                lambda message, context: through(call, name, message, context),
                request.deserialize,
                lambda answer: type(answer).serialize(answer),
            )

        def append(requests: Iterable[Any], context: Any) -> Iterator[Any]:
            for request in requests:
                yield through(self._append, "AppendRows", request, context)

        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "CreateWriteStream": unary(
                    "CreateWriteStream", types.CreateWriteStreamRequest, self._create
                ),
                "FlushRows": unary("FlushRows", types.FlushRowsRequest, self._flush),
                "FinalizeWriteStream": unary(
                    "FinalizeWriteStream", types.FinalizeWriteStreamRequest, self._finalize
                ),
                "AppendRows": grpc.stream_stream_rpc_method_handler(
                    append,
                    types.AppendRowsRequest.deserialize,
                    types.AppendRowsResponse.serialize,
                ),
            },
        )

    def _create(self, request: types.CreateWriteStreamRequest) -> types.WriteStream:
        assert request.write_stream.type_ == types.WriteStream.Type.BUFFERED
        name = f"{request.parent}/streams/{uuid.uuid4().hex}"
        _, project, _, dataset, _, table = request.parent.split("/")
        with self._lock:
            self._streams[name] = _Stream(f"{project}.{dataset}.{table}")
        return types.WriteStream(name=name, type_=request.write_stream.type_)

    def _append(self, request: types.AppendRowsRequest) -> types.AppendRowsResponse:
        name, offset = request.write_stream, cast("int", request.offset)
        if name.endswith("/_default"):
            return self._upsert(request)
        schema = pa.ipc.read_schema(
            pa.py_buffer(request.arrow_rows.writer_schema.serialized_schema)
        )
        rows = pa.py_buffer(request.arrow_rows.rows.serialized_record_batch)
        batch = pa.ipc.read_record_batch(rows, schema)
        with self._lock:
            stream = self._streams[name]
            stream.require_open()
            code, text = 0, ""
            if offset < stream.length:
                code, text = 6, "the offset has rows"
            elif offset > stream.length:
                code, text = 11, "the offset is beyond the end"
            else:
                stream.hidden.append(batch)
                stream.length += batch.num_rows
        if code:
            return types.AppendRowsResponse(error={"code": code, "message": text})
        return types.AppendRowsResponse(append_result={"offset": offset})

    def _flush(self, request: types.FlushRowsRequest) -> types.FlushRowsResponse:
        with self._lock:
            stream = self._streams[request.write_stream]
            stream.require_open()
            count = cast("int", request.offset) + 1 - stream.flushed
            if count <= 0:
                raise FileExistsError("the offset is flushed")
            rows = pa.Table.from_batches(stream.hidden)
            assert count <= rows.num_rows, "beyond the end of the stream"
            self.load(stream.table, rows[:count])
            stream.hidden, stream.flushed = rows[count:].to_batches(), stream.flushed + count
        return types.FlushRowsResponse(offset=request.offset)

    def _finalize(self, request: types.FinalizeWriteStreamRequest) -> Any:
        with self._lock:
            stream = self._streams[request.name]
            stream.is_finalized = True
            return types.FinalizeWriteStreamResponse(row_count=stream.length)

    def _upsert(self, request: types.AppendRowsRequest) -> types.AppendRowsResponse:
        """Apply the changes of a request, each unless its key has a newer one."""
        _, project, _, dataset, _, name, *_ = request.write_stream.split("/")
        table = f"{project}.{dataset}.{name}"
        descriptor = request.proto_rows.writer_schema.proto_descriptor
        with self._lock:
            try:
                fields = self.client.get_table(table).schema
            except NotFound as error:
                self._keyed.pop(table, None)
                raise KeyError(f"no such entity: {request.write_stream}") from error
            key = self._properties.get(table, {}).get("tableConstraints", {}).get("primaryKey")
            if key is None:
                raise ValueError("the table has no primary key")
            keyed = self._keyed.setdefault(table, {})
            for row in _rows_of(descriptor, request.proto_rows.rows.serialized_rows):
                change = _Change(row.pop("_CHANGE_SEQUENCE_NUMBER"), row, row.pop("_CHANGE_TYPE"))
                one = tuple(row.get(column) for column in key["columns"])
                if one not in keyed or keyed[one].number <= change.number:
                    keyed[one] = change
            rows = [change.row for change in keyed.values() if change.kind == "UPSERT"]
            arrays = {
                field.name: pa.array([row.get(field.name) for row in rows], _sent(field.type)).cast(
                    field.type
                )
                for field in schema_of(fields)
            }
            self._load(table, pa.table(arrays), "WRITE_TRUNCATE")
        return types.AppendRowsResponse(append_result={})

    def load(self, table: str, rows: pa.Table) -> None:
        """Add rows, which are visible from now on."""
        self._load(table, rows, "WRITE_APPEND")

    def _load(self, table: str, rows: pa.Table, disposition: str) -> None:
        file = io.BytesIO()
        pq.write_table(rows, file)
        file.seek(0)
        config = bigquery.LoadJobConfig(
            source_format="PARQUET",
            write_disposition=disposition,
            schema=self.client.get_table(table).schema,
        )
        self.client.load_table_from_file(file, table, job_config=config).result()

    def _table(
        self, forward: Application, door: Door, body: bytes, environ: Any, start_response: Any
    ) -> Iterable[bytes]:
        """Answer a request for tables, with what the emulator forgets of them."""
        method, asked = environ["REQUEST_METHOD"], json.loads(body or b"{}")
        stated = {name: asked[name] for name in _FORGOTTEN if name in asked}
        _, _, dataset, _, *rest = environ["PATH_INFO"].rpartition("/projects/")[2].split("/")
        name = rest[0] if rest else asked.get("tableReference", {}).get("tableId")
        table = f"{PROJECT}.{dataset}.{name}"
        if method == "POST":
            self._properties.setdefault(table, stated)
        elif method == "PATCH" and "maxStaleness" in stated:
            door.requests.append(f"maxStaleness {stated['maxStaleness']}")
            self._properties[table].update(stated)
        elif method == "PATCH":
            return self._altered(forward, environ, start_response)
        own = self._properties.get(table)
        if not own or method == "POST":
            return forward(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({**self.client.get_table(table).to_api_repr(), **own}).encode()]

    def _altered(
        self, forward: Application, environ: dict[str, Any], start_response: Any
    ) -> Iterable[bytes]:
        """Have a table altered; the emulator does not give a struct the fields that it gets."""
        *_, dataset, _, name = environ["PATH_INFO"].split("/")
        table = self.client.get_table(f"{PROJECT}.{dataset}.{name}")
        rows = self.client.query(f"SELECT * FROM `{table.full_table_id.replace(':', '.')}`")
        before = rows.to_arrow(create_bqstorage_client=False)
        answer = list(forward(environ, start_response))
        table.schema = self.client.get_table(table.reference).schema
        self.client.delete_table(table.reference)
        self.client.create_table(table)
        self.load(f"{PROJECT}.{dataset}.{name}", before)
        return answer


def message_class(descriptor: Any) -> Any:
    """Return the class of messages of a type."""
    pool = DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="rows", syntax="proto2")
    file.message_type.append(descriptor)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(descriptor.name))


def _rows_of(descriptor: Any, messages: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the fields of messages, by the names of their columns."""
    make = message_class(descriptor)
    for message in messages:
        row = make.FromString(message)
        yield {
            _column_of(field): list(value) if field.is_repeated else value
            for field, value in row.ListFields()
        }


def _column_of(field: Any) -> str:
    """Return the column that a field is for: its option states one with another name."""
    options = field.GetOptions().SerializeToString()
    # The length takes one byte: no name of the tests is longer than 127.
    return options[len(_COLUMN_NAME) + 1 :].decode() if options else str(field.name)


def _sent(kind: pa.DataType) -> pa.DataType:
    """Return the type in which messages have values of a column."""
    if pa.types.is_list(kind):
        return pa.list_(_sent(kind.value_type))
    others = {pa.types.is_timestamp: pa.int64(), pa.types.is_date: pa.int32()}
    others[pa.types.is_decimal] = pa.string()
    return next((sent for is_kind, sent in others.items() if is_kind(kind)), kind)


def query_of(body: bytes) -> str | None:
    """Return the SQL of a request for a job; None for other requests."""
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    text = asked.get("query", asked.get("configuration", {}).get("query", {}).get("query"))
    return text if isinstance(text, str) else None


@contextmanager
def bigquery_server() -> Iterator[BigQueryServer]:
    """Run the emulator with the server before it for the time of the context."""
    with bigquery_emulator() as rest:
        yield BigQueryServer(rest)


@contextmanager
def bigquery_emulator() -> Iterator[str]:
    """Run the emulator for the time of the context; its URL.

    Raises:
        RuntimeError: it is not installed.
    """
    if not _PYTHON.exists():
        raise RuntimeError("BigQuery's emulator is not installed: make .venv-bigquery/.installed")
    rest, rpc = free_port(), free_port()
    ports = ["--rest-port", str(rest), "--grpc-port", str(rpc), "--log-level", "error"]
    process = subprocess.Popen(
        [_PYTHON, "-m", "bqemulator", "start", *ports], stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + _STARTED_S_MAX
        while not _listens(rest):
            assert process.poll() is None, "BigQuery's emulator ended at once"
            assert time.monotonic() < until, "BigQuery's emulator does not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{rest}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[BigQueryServer]:
    """Run BigQuery for a module."""
    with bigquery_server() as server:
        yield server


@pytest.fixture
def door(server: BigQueryServer) -> Iterator[Door]:
    """Serve BigQuery at ports of a test's own."""
    with server.door() as door:
        yield door


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
