"""The secrets of a running pipeline's settings are in nothing that it writes, starts or serves."""

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from slackwater.demo.load import Load, ddl
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.support.clusters import Cluster, cluster_of_two
from tests.support.emulators import NewDatabase
from tests.support.kafka_broker import spark_conf
from tests.support.object_stores import STORES, nobody
from tests.support.schema_registry import running_registry
from tests.support.secure_broker import SecureBroker
from tests.support.services import settings
from tests.support.waiting import wait_until

SECONDS_MAX = 300
SECRETS = {
    "store": "Hidden4711store",
    "key": "Hidden4711key",
    "token": "Hidden4711token",
    "Hadoop": "Hidden4711hadoop",
    "traces": "Hidden4711traces",
}
SECRET = "Hidden4711"


@dataclass(frozen=True)
class Target:
    """Where a pipeline writes.

    Attributes:
        sink: the settings, with secrets.
        fail, mend: make it refuse all, and take it again.
        conf: what it needs in spark.conf.
        secrets: those that are not of SECRETS.
    """

    sink: dict[str, Any]
    fail: Callable[[], None]
    mend: Callable[[], None]
    conf: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()


@contextmanager
def object_store(name: str) -> Iterator[Target]:
    with STORES[name]() as store:
        options = dict(store.options)
        secrets: tuple[str, ...] = ()
        if name == "s3":
            options["aws_secret_access_key"] = SECRETS["key"]
            options["aws_session_token"] = SECRETS["token"]
        elif name == "gs":
            account = json.loads(options["google_service_account_key"])
            account["private_key"] = SECRETS["key"]
            options["google_service_account_key"] = json.dumps(account)
        else:
            secrets = (options["azure_storage_account_key"],)
        yield Target(
            {"path": f"{store.path}/orders", "storage_options": options},
            fail=partial(setattr, store, "refuses", lambda method, _: method == "PUT"),
            mend=partial(setattr, store, "refuses", nobody),
            secrets=secrets,
        )


@contextmanager
def kafka(folder: Path, of_broker: Path) -> Iterator[Target]:
    broker = SecureBroker(of_broker, SECRETS["key"])
    user = f"ann:{SECRETS['token']}"
    broker.start()
    try:
        with running_registry() as (registry, url):
            of_user = base64.b64encode(user.encode()).decode()
            registry.authorization = f"Basic {of_user}"
            sink = {
                "kind": "kafka",
                "format": "avro",
                "path": str(folder / "staging"),
                "checkpoint": str(folder / "checkpoint"),
                "confluent_schema_registry": url.replace("://", f"://{user}@"),
                "options": dict(broker.options),
            }
            yield Target(
                sink,
                fail=partial(setattr, registry, "is_away", True),
                mend=partial(setattr, registry, "is_away", False),
                conf=spark_conf(),
                secrets=(of_user,),
            )
    finally:
        broker.kill()


def values_in(values: dict[str, Any], folder: Path, store_url: str, target: Target) -> Any:
    """Add secrets wherever the settings of a pipeline can have one."""
    url = sa.make_url(store_url).set(password=SECRETS["store"])
    values["sink"] = target.sink
    values["state"] = {"url": url.render_as_string(hide_password=False)}
    values["http"] = {"listen": "127.0.0.1:0"}
    values["log"] = {"level": "debug"}
    # Nobody answers there, which the exporter says.
    values["trace"] = {"endpoint": f"http://u:{SECRETS['traces']}@127.0.0.1:1/v1/traces"}
    values["spark"]["conf"] = {
        **target.conf,
        "spark.hadoop.fs.s3a.secret.key": SECRETS["Hadoop"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{folder / 'events'}",
    }
    return values


def wait_for(is_so: Callable[[], bool], service: Service) -> None:
    wait_until(is_so, lambda: service.log.read_text()[-3_000:], seconds_max=SECONDS_MAX)


def of_processes(service: Service, cluster: Cluster | None) -> Iterator[tuple[str, bytes]]:
    """Yield what children have in their environment, and all processes in their arguments."""
    process = psutil.Process(service.pid)
    children = process.children(recursive=True)
    for of_cluster in cluster.processes if cluster else ():
        children += psutil.Process(of_cluster.pid).children(recursive=True)
    for child in children:
        name = f"{child.name()} {child.pid}"
        try:
            yield f"environment of {name}", str(child.environ()).encode()
            yield f"arguments of {name}", str(child.cmdline()).encode()
        except psutil.NoSuchProcess:
            continue
    yield "arguments of the program", str(process.cmdline()).encode()


def served(address: str) -> Iterator[tuple[str, bytes]]:
    for path in ("/", "/api/pipelines", "/api/pipelines/orders", "/metrics", "/readyz"):
        try:
            with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
                yield path, answer.read()
        except urllib.error.HTTPError as error:
            yield path, error.read()


def stored(url: str) -> Iterator[tuple[str, bytes]]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        for table in sa.inspect(engine).get_table_names():
            rows = connection.execute(sa.text(f"SELECT t::text FROM {table} t"))
            yield f"table {table}", str(rows.fetchall()).encode()
    engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize("where", ["s3", "s3 from a cluster", "gs", "az", "kafka"])
def test_secrets_are_in_no_log_argument_environment_store_file_or_answer(
    where: str,
    new_database: NewDatabase,
    new_postgres_url: Callable[[], str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    *tables, of_stream = ddl(Dialect.GOOGLE_STANDARD_SQL)
    of_stream += " OPTIONS (value_capture_type = 'NEW_ROW')"
    stream = new_database(Dialect.GOOGLE_STANDARD_SQL, [*tables, of_stream])
    load, connection = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=3), Connection(stream)
    for name in ("events", "tmp"):
        (tmp_path / name).mkdir()
    start = format_rfc3339(connection.strong_read_timestamp_ns())
    url = new_postgres_url()
    seen: dict[str, bytes] = {}
    with ExitStack() as stack:
        name, on_cluster = where.partition(" ")[0], where.endswith("cluster")
        if name == "kafka":
            # The broker's own settings have the passwords.
            target = stack.enter_context(kafka(tmp_path, tmp_path_factory.mktemp("broker")))
        else:
            target = stack.enter_context(object_store(name))
        cluster = stack.enter_context(cluster_of_two(tmp_path)) if on_cluster else None
        values = values_in(settings(stream, tmp_path, start), tmp_path, url, target)
        if cluster is not None:
            values["spark"] = {
                "master": cluster.master,
                "conf": {**values["spark"]["conf"], **cluster.conf},
            }
        service = Service(values, tmp_path, os.environ | {"TMPDIR": str(tmp_path / "tmp")})
        # A failure is told everywhere.
        target.fail()
        service.start()
        stack.callback(service.kill)
        load.run(transactions_per_second=20, seconds=1)
        wait_for(lambda: "will try again" in service.log.read_text(), service)
        serving = re.search(r"address=(\S+)", service.log.read_text())
        assert serving is not None
        seen |= {f"failed: {place}": content for place, content in served(serving[1])}
        seen |= {f"failed: {place}": content for place, content in stored(url)}
        target.mend()
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX)
        if name != "kafka":
            # Tasks meet this one. A registry is asked for the first records only.
            failures = service.log.read_text().count("will try again")
            target.fail()
            load.run(transactions_per_second=20, seconds=1)
            wait_for(lambda: service.log.read_text().count("will try again") > failures, service)
        seen |= dict(of_processes(service, cluster))
        seen |= dict(served(serving[1]))
        seen |= dict(stored(url))
        target.mend()
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX)
        assert service.drain() == 0
    seen |= {
        str(path): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path != service.config
    }
    assert len([name for name in seen if "environment" in name]) >= 2
    # Both executors', with their logs.
    assert len([name for name in seen if re.search("/worker./app-.*/stderr$", name)]) == (
        2 if on_cluster else 0
    )
    assert [name for name in seen if "/events/" in name]
    for secret in (SECRET, *target.secrets):
        assert [name for name, content in seen.items() if secret.encode() in content] == []
