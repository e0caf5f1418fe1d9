"""Wrong set-ups: what differs from right settings, and what the answer has to name and propose."""

import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from slackwater.commands import check
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.kafka import broker
from slackwater.state import store as state_store
from slackwater.state.store import Store
from tests.support.grpc_servers import answering
from tests.support.object_stores import ServedStore, cloud_storage, s3

Sections = Mapping[str, Any]
CHECK, RUN = "check", "run"
SOON_S = 0.3


@dataclass(frozen=True)
class SetUp:
    """A wrong set-up.

    Attributes:
        sections: what differs from right settings, section by section.
        says, remedy: what the answer has to name, and to propose.
        code: the exit code: 2 if a user has to change something.
        by: the commands that see it without Spark.
        environ: variables of the environment; None for one that is not set.
        text: the settings file as it is; None for one with the sections.
        arguments: the command's, in place of -c and the file.
        world: is around the command, and returns more sections.
    """

    sections: Sections
    says: str
    remedy: str
    code: int = 2
    by: tuple[str, ...] = (CHECK, RUN)
    environ: Mapping[str, str | None] = field(default_factory=dict)
    text: str | None = None
    arguments: tuple[str, ...] | None = None
    world: Callable[[], AbstractContextManager[Sections]] = lambda: nullcontext({})


def source(says: str, remedy: str, **keys: str) -> SetUp:
    return SetUp({"source": keys}, says, remedy)


TO_2026 = {"end": "2026-01-01T00:00:00Z"}


def kept(says: str, remedy: str, **keys: Any) -> SetUp:
    return SetUp({"filter": keys}, says, remedy, by=(CHECK,))


@contextmanager
def impatient() -> Iterator[Sections]:
    """What does not answer is asked for less than a second instead of half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        assert Connection.retry.__kwdefaults__ is not None
        patch.setitem(Connection.retry.__kwdefaults__, "seconds_max", SOON_S)
        patch.setattr(state_store, "_OPEN_PATIENCE_S", SOON_S)
        patch.setattr(check, "_ANSWER_S_MAX", SOON_S)
        patch.setattr(broker, "_ANSWER_S_MAX", SOON_S)
        yield {}


@contextmanager
def taken_port() -> Iterator[Sections]:
    with impatient(), socket.create_server(("127.0.0.1", 0)) as listener:
        yield {"http": {"listen": f"127.0.0.1:{listener.getsockname()[1]}"}}


@contextmanager
def newer_store() -> Iterator[Sections]:
    """A store outside the folder that has to stay empty."""
    file = Path.cwd().parent / "newer.db"
    Store.open(f"sqlite:///{file}", migrate=True).close()
    with sqlite3.connect(file) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    yield {"state": {"url": f"sqlite:///{file}"}}


@contextmanager
def without_permission() -> Iterator[Sections]:
    """The emulator allows everything, so a server of the real protocol refuses."""

    def refuse(details: Any, request: bytes, context: grpc.ServicerContext) -> bytes:
        del details, request
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "Caller is missing IAM permission")
        raise AssertionError

    with answering(refuse) as host, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPANNER_EMULATOR_HOST", host)
        yield {}


def in_store(
    says: str,
    remedy: str,
    change: Callable[[ServedStore], None] = lambda store: None,
    *,
    code: int = 2,
    by: tuple[str, ...] = (CHECK,),
    options: Mapping[str, str | None] | None = None,
    spark: Sections | None = None,
    **sink: Any,
) -> SetUp:
    """An output in S3: a changelog of files, unless the sink's keys say otherwise."""

    @contextmanager
    def world() -> Iterator[Sections]:
        with s3() as store:
            change(store)
            values: dict[str, Any] = {
                "path": "s3://changes/orders",
                "kind": "changelog",
                "checkpoint": None,
            }
            values |= sink
            if values["kind"] == "changelog":
                merged = {**store.options, **(options or {})}
                values["storage_options"] = {k: v for k, v in merged.items() if v is not None}
            yield {"sink": values, **({} if spark is None else {"spark": spark})}

    environ = dict.fromkeys(name for name in os.environ if name.startswith("AWS_"))
    return SetUp({}, says, remedy, code, by, environ, world=world)


def in_cloud_storage(
    says: str,
    remedy: str,
    change: Callable[[ServedStore], None] = lambda store: None,
    *,
    code: int = 2,
    path: str = "gs://changes/orders",
    account: Mapping[str, Any] | None = None,
) -> SetUp:
    """A changelog of files in Cloud Storage.

    Args:
        says, remedy, change, code, path: as in_store() has them.
        account: what differs in the service account's key; an empty one for no key at all.
    """

    @contextmanager
    def world() -> Iterator[Sections]:
        with cloud_storage() as store:
            change(store)
            options, name = store.options, "google_service_account_key"
            options[name] = json.dumps({**json.loads(options[name]), **(account or {})})
            if account == {}:
                del options[name]
            sink = {"path": path, "checkpoint": None, "storage_options": options}
            yield {"sink": sink}

    environ = dict.fromkeys(name for name in os.environ if name.startswith("GOOGLE_"))
    metadata = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"), NOBODY)
    return SetUp({}, says, remedy, code, (CHECK,), {**environ, **metadata}, world=world)


def without_right(method: str, part: str = "") -> Callable[[ServedStore], None]:
    """Return what takes the right to do something from all objects whose names have a part."""

    def refuse(store: ServedStore) -> None:
        store.refuses = lambda asked, name: asked == method and part in name

    return refuse


def without_conditions(store: ServedStore) -> None:
    store.heeds_conditions = False


NO_CREDENTIALS = {
    "SPANNER_EMULATOR_HOST": None,
    "GOOGLE_APPLICATION_CREDENTIALS": None,
    "CLOUDSDK_CONFIG": "/nonexistent",
    "NO_GCE_CHECK": "true",
}
NOBODY = "127.0.0.1:1"
BROKEN = "pipeline: orders\nsource: {project: ["
KAFKA = {
    "kind": "kafka",
    "format": "json",
    "envelope": "key_only",
    "options": {"kafka.bootstrap.servers": NOBODY},
}
RIGHTS = "at the rights: the pipeline lists, reads, writes and deletes objects there"
CONNECTOR = "`slackwater jars FOLDER s3a` fetches hadoop-aws"

SETTINGS = {
    "no file": SetUp({}, "no settings file was named", "Name one with -c FILE", arguments=()),
    "missing file": SetUp({}, "none.yaml can't be read", "-c", arguments=("-c", "none.yaml")),
    "broken YAML": SetUp({}, "is not valid YAML", "line 2, column 20", text=BROKEN),
    "unknown key": source("unknown key", "did you mean 'change_stream'?", change_strem="S"),
    "malformed name": source("not a valid name in Spanner", "must match [A-Za", change_stream="S`"),
    "malformed start": source("not an RFC 3339 timestamp", "write now or earliest", start="today"),
    "end before start": source(
        "lies before start", "a later end", **TO_2026, start="2026-02-01T00:00:00Z"
    ),
    "short heartbeat": SetUp({"epoch": {"heartbeat": "10ms"}}, "epoch.heartbeat", "1s to 5m"),
    "unknown format": SetUp(
        {"sink": {"format": "parket"}}, "'parket'", "known: parquet, json, orc"
    ),
    "one folder for two": SetUp(
        {"sink": {"path": "a", "checkpoint": "./a"}}, "path and checkpoint are both", "must differ"
    ),
}
PLACES = {
    "no Java": SetUp(
        {}, "Spark needs Java", "set JAVA_HOME", environ={"JAVA_HOME": "/nonexistent"}
    ),
    "malformed store": SetUp({"state": {"url": "nonsense"}}, "not a URL", "Write sqlite:///"),
    "store of an unknown kind": SetUp(
        {"state": {"url": "postgres://user:secret@h/db"}}, "load plugin", "Write sqlite:///"
    ),
    "store in memory": SetUp(
        {"state": {"url": "sqlite:///:memory:"}}, "can't be shared", "Write sqlite:///path"
    ),
    "store in no folder": SetUp(
        {"state": {"url": "sqlite:////dev/null/state.db"}}, "/dev/null", "another place"
    ),
    "store that is down": SetUp(
        {"state": {"url": f"postgresql+psycopg://user:secret@{NOBODY}/db"}},
        NOBODY,
        "Check that it runs",
        1,
        world=impatient,
    ),
    "store of a newer version": SetUp(
        {}, "newer than this program's", "Run the version of Slackwater", world=newer_store
    ),
    "output below a file": SetUp(
        {"sink": {"path": "/etc/passwd/out"}},
        "/etc/passwd is not a writable folder",
        "Choose another place",
        by=(CHECK,),
    ),
    "no Kafka": SetUp(
        {"sink": KAFKA},
        f"no Kafka broker answers at {NOBODY}",
        "whether the broker runs",
        1,
        (CHECK,),
        world=impatient,
    ),
    "port in use": SetUp({}, "can't be listened on", "Choose another address", world=taken_port),
    "another machine's address": SetUp(
        {"http": {"listen": "192.0.2.1:8080"}}, "can't be listened on", "Choose another address"
    ),
}
SPANNER = {
    "no such project": source("other-project", "Correct the name", project="other-project"),
    "no such instance": source("other-instance", "Correct the name", instance="other-instance"),
    "no such database": source("other-database", "Correct the name", database="other-database"),
    "no such stream": source(
        "no change stream 'Other'", "It has: DemoStream", change_stream="Other"
    ),
    "start too early": source("or later", "use start: earliest", start="1999-01-01T00:00:00Z"),
    "start to come": source(
        "after the source's clock", "Use start: now", start="2999-01-01T00:00:00Z"
    ),
    "end before the scan": source(
        "is in the past, and the initial scan",
        "Leave out source.end",
        **TO_2026,
        initial_scan="yes",
    ),
    "no emulator": SetUp(
        {},
        NOBODY,
        "Check that it runs",
        1,
        environ={"SPANNER_EMULATOR_HOST": NOBODY},
        world=impatient,
    ),
    "no permission": SetUp(
        {},
        "is missing IAM permission",
        "Grant roles/spanner.databaseReader",
        world=without_permission,
    ),
    "no credentials": SetUp(
        {}, "credentials were not found", "application-default login", environ=NO_CREDENTIALS
    ),
}
FILTERS = {
    "table with a typing error": kept(
        "'Custommers' matches no table", "Did you mean 'Customers'?", tables=["Custommers"]
    ),
    "no table to leave out": kept(
        "'Nothing*'", "It watches Customers", exclude_tables=["Nothing*"]
    ),
    "no column to keep": kept(
        "'Orders.Sum' matches no column", "'Orders.Item'?", columns=["Orders.Sum"]
    ),
    "no column to leave out": kept("'*.Nmae'", "It watches Customers", exclude_columns=["*.Nmae"]),
    "a key, which can't change": kept(
        "outside the primary key", "'Orders.Item'?", when_changed=["Orders.OrderId"]
    ),
}
OBJECT_STORES = {
    "no bucket": in_store("bucket does not exist", "the bucket's name", path="s3://nobodys/orders"),
    "no right to create": in_store("creating an object failed", RIGHTS, without_right("PUT")),
    "no right to read": in_store(
        "reading an object failed", RIGHTS, without_right("GET", "_probe")
    ),
    "no right to list": in_store(
        "listing the objects failed", RIGHTS, without_right("GET", "changes")
    ),
    "no right to delete": in_store("deleting the object _probe", RIGHTS, without_right("POST")),
    "no conditions": in_store("creates an object again", "conditional writes", without_conditions),
    "object store that is down": in_store(
        f"http://{NOBODY}/",
        "Check the network",
        code=1,
        options={"aws_endpoint": f"http://{NOBODY}"},
    ),
    "no credentials for it": in_store(
        "/latest/api/token",
        "no credentials in the environment",
        options={
            "aws_access_key_id": None,
            "aws_secret_access_key": None,
            "aws_metadata_endpoint": f"http://{NOBODY}",
        },
    ),
    "no bucket in Cloud Storage": in_cloud_storage(
        "bucket does not exist", "the bucket's name", path="gs://nobodys/orders"
    ),
    "no right to create in Cloud Storage": in_cloud_storage(
        "creating an object failed", RIGHTS, without_right("PUT")
    ),
    "no right to read in Cloud Storage": in_cloud_storage(
        "reading an object failed", RIGHTS, without_right("GET", "_probe")
    ),
    "no right to list in Cloud Storage": in_cloud_storage(
        "listing the objects failed", RIGHTS, without_right("GET", "changes")
    ),
    "no right to delete in Cloud Storage": in_cloud_storage(
        "deleting the object _probe", RIGHTS, without_right("DELETE")
    ),
    "Cloud Storage without conditions": in_cloud_storage(
        "creates an object again", "conditional writes", without_conditions
    ),
    "Cloud Storage that is down": in_cloud_storage(
        f"http://{NOBODY}/",
        "Check the network",
        code=1,
        account={"gcs_base_url": f"http://{NOBODY}"},
    ),
    "no credentials for Cloud Storage": in_cloud_storage(
        "/computeMetadata/", "no credentials in the environment", account={}
    ),
    "no connector for the checkpoint": in_store(
        "no connector for s3a",
        CONNECTOR,
        by=(CHECK, RUN),
        spark={"jars": "/nonexistent"},
        checkpoint="s3a://changes/checkpoint",
    ),
    "unknown file system": in_store(
        "knows no file system s4", "Known: abfs", by=(CHECK, RUN), checkpoint="s4://changes/c"
    ),
    "no connector for the output": in_store(
        "no connector for s3a",
        CONNECTOR,
        by=(CHECK, RUN),
        spark={"jars": "/nonexistent"},
        path="s3a://changes/o",
        checkpoint="checkpoint",
        kind="spark",
        format="csv",
    ),
}
WRONG: dict[str, SetUp] = {**SETTINGS, **PLACES, **SPANNER, **FILTERS, **OBJECT_STORES}
