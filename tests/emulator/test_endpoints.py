"""Other endpoints than the service's: TLS, mutual TLS, and certificates that are renewed."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import trustme
import yaml

from slackwater.demo.load import Load
from slackwater.endpoint import EMULATOR_VARIABLE, Endpoint
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import UnavailableError
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.continuous.reader_client import ReaderClient
from slackwater.scheduler.read_options import Reading
from slackwater.state.errors import StoreRefusedError, StoreUnreachableError, StoreUrlError
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339
from tests.support.command_line import PROGRAM, slackwater
from tests.support.connect_proxy import connect_proxy
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop, endpoint_options
from tests.support.reader_processes import readers
from tests.support.reader_processes import short_folder as short_folder
from tests.support.reader_processes import sockets as sockets
from tests.support.tls_door import Guarded, guarded_server, server_side, tls_door
from tests.support.truths import require_equal, truth_of
from tests.support.wrong_set_ups import without_permission


@pytest.fixture
def guarded(tmp_path: Path, new_database: NewDatabase) -> Iterator[Guarded]:
    del new_database  # It starts the emulator.
    with guarded_server(tmp_path, os.environ[EMULATOR_VARIABLE]) as server:
        yield server


@pytest.mark.parametrize(("dialect", "reading"), zip(Dialect, Reading, strict=True))
def test_a_certificate_is_renewed_while_epochs_are_read(
    dialect: Dialect,
    reading: Reading,
    guarded: Guarded,
    sockets: Path,
    new_database: NewDatabase,
    new_store_url: Callable[[str], str],
) -> None:
    stream = new_database(dialect)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    behind = replace(stream, endpoint=guarded.endpoint)
    options = {"reading": reading.value}
    loop = EpochLoop(behind, new_store_url("sqlite"), start_ns=start_ns, options=options)
    loop.reader = ReaderClient(sockets, os.getpid())
    load = Load(stream, dialect, seed=5)
    epochs: list[pa.Table] = []
    for turn in range(3):
        if turn:
            guarded.renew()
        load.run(transactions_per_second=20, seconds=2)
        epochs += loop.epochs(loop.connection.strong_read_timestamp_ns())
    assert len(readers(sockets)) == (reading is Reading.CONTINUOUS), (
        "it went on in the same process"
    )
    output = pa.concat_tables(epochs)
    require_equal(output, truth_of(stream, start_ns, loop.watermark_ns or 0, dialect))
    loop.close()


def test_files_in_the_middle_of_being_replaced_change_nothing(
    guarded: Guarded, new_database: NewDatabase
) -> None:
    connection = Connection(replace(new_database(), endpoint=guarded.endpoint))
    assert connection.query("SELECT 1") == [["1"]]
    key = Path(str(guarded.endpoint.client_key))
    whole = key.read_bytes()
    key.write_bytes(whole[:50])
    assert connection.query("SELECT 1") == [["1"]]
    key.write_bytes(whole)
    assert connection.query("SELECT 1") == [["1"]]
    connection.close()


def test_whoever_has_no_certificate_stays_outside(
    guarded: Guarded, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Connection.retry.__kwdefaults__ is not None
    monkeypatch.setitem(Connection.retry.__kwdefaults__, "seconds_max", 1.0)
    endpoint = replace(guarded.endpoint, client_certificate=None, client_key=None)
    with pytest.raises(UnavailableError, match="takes the client's certificate"):
        Connection(replace(new_database(), endpoint=endpoint)).query("SELECT 1")


def test_a_metadata_store_in_spanner_has_an_endpoint_of_its_own(
    guarded: Guarded,
    new_store_url: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = new_store_url("spanner")
    endpoint = guarded.endpoint
    behind = f"{url}?{'&'.join(f'{k}={v}' for k, v in endpoint_options(endpoint).items())}"
    with pytest.raises(StoreUrlError, match=f"endpoint is {endpoint.host}, and SPANNER_EMULATOR"):
        Store.open(behind, migrate=True)
    monkeypatch.delenv(EMULATOR_VARIABLE)
    store = Store.open(behind, migrate=True)
    store.ensure_pipeline("orders", "stream")
    guarded.renew()
    store.ensure_pipeline("customers", "stream")
    missing = behind.replace("ca.pem", "none.pem")
    with pytest.raises(StoreUnreachableError, match=r"none\.pem, a file of the metadata store's"):
        Store.open(missing, migrate=False)
    assert [each.name for each in store.pipelines()] == ["customers", "orders"]
    store.close()
    # Without an endpoint of its own it is where the variable says.
    with without_permission(), pytest.raises(StoreRefusedError, match="missing IAM permission"):
        Store.open(url, migrate=False)


def test_init_check_and_tail_take_an_endpoint(
    guarded: Guarded,
    new_database: NewDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = new_database()
    start_ns = Connection(stream).strong_read_timestamp_ns()
    Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=5).run(transactions_per_second=20, seconds=1)
    end_ns = Connection(stream).strong_read_timestamp_ns()
    truth = truth_of(stream, start_ns, end_ns)
    monkeypatch.delenv(EMULATOR_VARIABLE)
    monkeypatch.chdir(tmp_path)
    named = named_by_options(stream, guarded.endpoint)
    made = slackwater("init", *named, "--check")
    assert made.returncode == 0, made.stdout + made.stderr
    source = yaml.safe_load(Path("slackwater.yaml").read_text())["source"]
    assert source["endpoint"] == guarded.endpoint.host
    times = ("--cursor", format_rfc3339(start_ns), "--end-time", format_rfc3339(end_ns))
    by_options = slackwater("tail", *named, *times, "--format", "json")
    by_file = slackwater("tail", *times, "--format", "json")
    assert by_options.returncode == by_file.returncode == 0, by_options.stderr + by_file.stderr
    lines = [json.loads(line) for line in by_file.stdout.splitlines()]
    assert by_options.stdout == by_file.stdout
    assert len(lines) == sum(len(record.mods) for record in truth.records) > 0


def test_a_proxy_leads_to_the_endpoint_and_brings_its_own_authority(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream, authority = new_database(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = server_side(authority.issue_cert("127.0.0.1"))
    behind = os.environ[EMULATOR_VARIABLE]
    with tls_door(behind, context) as door, connect_proxy() as proxy:
        environ = {k: v for k, v in os.environ.items() if k != EMULATOR_VARIABLE}
        environ |= {"https_proxy": proxy.url, "no_proxy": ""}
        environ |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "ca.pem")}
        endpoint = Endpoint(door.host, anonymous=True)
        options = [*named_by_options(stream, endpoint), "-c", str(tmp_path / "s.yaml")]
        made = subprocess.run(
            [*PROGRAM, "init", *options],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert made.returncode == 0, made.stdout + made.stderr
    assert proxy.tunnels.keys() == {door.host}


def named_by_options(stream: ChangeStream, endpoint: Endpoint) -> list[str]:
    """Return the options of a command that name a change stream and its endpoint."""
    source = endpoint_options(endpoint)
    return [
        *("--project", stream.project, "--instance", stream.instance),
        *("--database", stream.database, "--change-stream", stream.change_stream),
        *(text for key, value in source.items() for text in ("--source", f"{key}={value}")),
    ]
