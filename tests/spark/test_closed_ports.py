"""Another user of the machine reads nothing of a running pipeline, and stops nothing.

The pipeline runs as the user of the tests, in folders that everybody can enter; the attacks run as
another user (`tests/support/strangers.py`). After each attack epochs go on, and at the end the
output is compared with the truth.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import product
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters, PythonProxyPool

from slackwater.config.settings import Settings
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.own_folder import own_folder
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.continuous.reader_client import ReaderClient
from slackwater.sealing import seal, use_key
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator import Emulator
from slackwater.timestamp import format_rfc3339
from tests.support import strangers
from tests.support.attacked import SECONDS_MAX, Pipeline
from tests.support.clusters import cluster_of_two
from tests.support.emulators import database_on
from tests.support.services import settings
from tests.support.strangers import StrangersSpark
from tests.support.truths import require_equal, truth_of
from tests.support.waiting import wait_until
from tests.unit.config.test_settings import MINIMAL

SECRET = "Hidden4711"
TOKEN = f"{SECRET}tokenoftheapi"
# What Spark says of a message that does not prove that its sender has the secret.
REFUSED = "Unknown challenge message"
CURL_NOT_CONNECTED = 7
IDLE = 200
PARTITION_ALIVE_S = 20
Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that everybody can enter, which pytest's are not."""
    made = Path(tempfile.mkdtemp(prefix="slackwater-open-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", params=["local", pytest.param("cluster", marks=pytest.mark.long)])
def pipeline(
    request: pytest.FixtureRequest,
    emulator: Emulator,
    folder: Path,
) -> Iterator[Pipeline]:
    own = folder / request.param
    tmp = own / "tmp"
    tmp.mkdir(parents=True)
    own.chmod(0o755)
    tmp.chmod(0o1777)
    stream = database_on(emulator)
    connection, load = Connection(stream), Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=4)
    start_ns = connection.strong_read_timestamp_ns()
    values = settings(stream, own, format_rfc3339(start_ns))
    token = own / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    # Without a pause, epochs would take the processor from the attacks.
    values["epoch"] = {"reading": "continuous"}
    values["http"] = {"listen": "127.0.0.1:0", "token_file": str(token)}
    values["log"] = {"level": "debug"}
    values["trace"] = {"endpoint": f"http://u:{SECRET}@127.0.0.1:1/v1/traces"}
    values["spark"]["conf"] = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    # Before the variables are set, by which the pipeline's processes are known.
    url = request.getfixturevalue("new_postgres_url")() if request.param == "cluster" else ""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("TMPDIR", str(tmp))
        # The JVM gets none of these.
        patch.setenv("SLACKWATER_HTTP_HOSTS", "localhost")
        options = f"{os.environ['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={tmp}"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        cluster = None
        if request.param == "cluster":
            cluster = stack.enter_context(cluster_of_two(own))
            values["spark"] = {
                "master": cluster.master,
                "conf": {**values["spark"]["conf"], **cluster.conf},
            }
            values["state"] = {"url": f"{url}{'&' if '?' in url else '?'}password={SECRET}"}
        else:
            values["state"] = {"url": f"sqlite:///{own / 'state.db'}?password={SECRET}"}
        service = Service(values, own, os.environ, dies_with_parent=True)
        # The program's own modes are to protect it.
        stack.callback(os.umask, os.umask(0o022))
        service.start()
        stack.callback(service.kill)
        running = Pipeline(service, own, tmp, load, connection, cluster)
        running.goes_on()
        wait_until(lambda: list(tmp.rglob("*.sock")), seconds_max=SECONDS_MAX)
        yield running
        assert service.drain() == 0
        truth = truth_of(stream, start_ns, connection.strong_read_timestamp_ns())
        require_equal(read_changelog(own / "changes"), truth)


@pytest.fixture(autouse=True)
def _nothing_is_stopped(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pipeline" in request.fixturenames:
        request.getfixturevalue("pipeline").goes_on()


def at_once(attack: Callable[[Any], Answer], targets: Iterable[Any]) -> list[Answer]:
    """Do the same to each of the targets: some answer nothing for a while."""
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(attack, targets))


@pytest.fixture(scope="module")
def spark() -> Iterator[StrangersSpark]:
    with strangers.spark() as made:
        yield made


def test_no_port_is_reached_from_another_machine(pipeline: Pipeline) -> None:
    # Of the JVM: py4j's, Spark's RPC and its blocks; of Python: py4j's for callbacks, the page.
    assert len(pipeline.listening("java")) >= 3
    assert len(pipeline.listening("python")) >= 2
    assert {address for address, _ in pipeline.listening()} == {"127.0.0.1"}


@pytest.mark.long
def test_spark_gives_a_stranger_no_blocks(pipeline: Pipeline, spark: StrangersSpark) -> None:
    block = spark.broadcast(SECRET)
    # A Spark that asks for no secret gives it.
    assert SECRET in spark.block(spark.block_port, block)
    answers = at_once(lambda port: spark.block(port, block), pipeline.ports("java"))
    assert len([answer for answer in answers if REFUSED in answer]) >= 2
    assert SECRET not in str(answers)


def test_spark_is_stopped_by_no_message(pipeline: Pipeline, spark: StrangersSpark) -> None:
    guesses = product(pipeline.ports("java"), (None, "a guess"))
    refusals = at_once(lambda guess: spark.stop(*guess), guesses)
    assert None not in refusals
    # Who may ask for an endpoint learns whether there is one.
    assert "EndpointNotFound" not in str(refusals)


@pytest.mark.long
def test_a_spark_without_a_secret_is_stopped_by_the_same_message(spark: StrangersSpark) -> None:
    """Otherwise the test above could not fail."""
    assert spark.works()
    assert spark.stop(spark.rpc_port, None) is None
    assert not spark.works()


# Of py4j's protocol: a static method of the JVM's, and one of a function that Spark calls.
OF_JVM = "c\nz:java.lang.System\ngetProperty\nsuser.home\ne\n"
OF_PYTHON = "c\np0\n__getattribute__\ns__doc__\ne\n"
GUESS = "A\na guess\ne\n"
DONE = "!y"


class Called:
    """What Spark might call."""


def test_py4j_takes_no_calls_without_its_token(pipeline: Pipeline) -> None:
    calls = [f"{token}{call}" for token in ("", GUESS) for call in (OF_JVM, OF_PYTHON)]
    attacks = product(pipeline.ports(), calls)
    answers = at_once(lambda attack: strangers.sent(attack[0], attack[1].encode()), attacks)
    assert "Authentication error" in str(answers)
    assert DONE not in str(answers)


@pytest.mark.long
def test_py4j_without_a_token_takes_the_same_calls(spark: StrangersSpark) -> None:
    """Otherwise the test above could not fail."""
    assert DONE in strangers.sent(spark.py4j_port, OF_JVM.encode())
    pool = PythonProxyPool()
    pool.put(Called())
    parameters = CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
    server = CallbackServer(pool, None, callback_server_parameters=parameters)
    server.start()
    assert str(Called.__doc__) in strangers.sent(server.get_listening_port(), OF_PYTHON.encode())
    server.shutdown()


@pytest.mark.long
def test_idle_connections_stop_nothing(pipeline: Pipeline) -> None:
    with strangers.idle(pipeline.ports(), IDLE):
        pipeline.goes_on()


def test_the_readers_socket_is_out_of_reach(pipeline: Pipeline) -> None:
    for path in pipeline.tmp.rglob("*.sock"):
        code, answer = strangers.run("curl", "-sS", "--unix-socket", str(path), "http://reader/")
        assert code == CURL_NOT_CONNECTED, answer
    with Listener(str(pipeline.folder / "open.sock")) as control:
        os.chmod(control.address, 0o666)
        command = ("curl", "-sS", "-m1", "--unix-socket", control.address, "http://reader/")
        assert strangers.run(*command)[0] != CURL_NOT_CONNECTED


def test_processes_show_nothing_but_their_names(pipeline: Pipeline) -> None:
    assert strangers.run("cat", "/proc/self/environ")[0] == 0
    processes = pipeline.processes()
    assert len(processes) >= 4
    for process in processes:
        place = f"/proc/{process.pid}"
        for secret_place in ("environ", "maps", "mem", "io", "stack"):
            assert strangers.run("head", "-c1", f"{place}/{secret_place}")[0] == 1, secret_place
        for secret_place in ("fd", "cwd/", "root/", "map_files"):
            assert strangers.run("ls", f"{place}/{secret_place}")[0] == 2, secret_place
        assert strangers.run("kill", "-STOP", str(process.pid))[0] == 1
    shown = strangers.run("ps", "axwwe")[1] + strangers.run("bash", "-c", "cat /proc/*/cmdline")[1]
    assert "slackwater.cli" in shown
    assert SECRET not in shown
    for process in psutil.Process(pipeline.service.pid).children(recursive=True):
        # Some end meanwhile.
        with suppress(psutil.NoSuchProcess):
            assert "SLACKWATER_HTTP_HOSTS" not in process.environ()


def test_files_are_neither_read_nor_written(pipeline: Pipeline) -> None:
    def reached(*places: Path | str) -> list[str]:
        shown = strangers.run("find", *map(str, places), "-readable", "-o", "-writable")[1]
        return [line for line in shown.splitlines() if not line.startswith("find: ")]

    own = ("changes", "checkpoint", "slackwater.yaml", "token")
    files = [pipeline.folder / name for name in own]
    files += pipeline.folder.glob("state.db*")
    files += pipeline.tmp.glob("slackwater-*")
    assert len(files) > len(own)
    assert reached(*files) == []
    # Of Spark's files some are open, such as the libraries that it unpacks and its workers' logs.
    assert str(pipeline.service.log) in reached(pipeline.folder)
    code, shown = strangers.run("grep", "-rlaF", SECRET, str(pipeline.folder))
    assert [line for line in shown.splitlines() if not line.startswith("grep: ")] == [], code


def test_the_log_holds_no_secret_at_the_level_debug(pipeline: Pipeline) -> None:
    code, log = strangers.run("cat", str(pipeline.service.log))
    assert code == 0
    assert "event=epoch" in log
    assert SECRET not in log


def test_the_page_answers_by_its_own_name_and_for_its_token_only(pipeline: Pipeline) -> None:
    def status(path: str, *headers: str) -> str:
        options = [option for header in headers for option in ("-H", header)]
        return strangers.run(
            "curl",
            "-s",
            "-o/dev/null",
            "-w%{http_code}",
            *options,
            f"http://{pipeline.address}{path}",
        )[1]

    right, wrong = f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {TOKEN}x"
    for path in ("/", "/api/pipelines", "/api/pipelines/orders/epochs", "/metrics"):
        assert status(path, right) == "200"
        assert status(path) == status(path, wrong) == "401"
        assert status(path, right, "Host: evil.example") == "421"


@pytest.mark.long
def test_no_page_of_spark_stops_anything(pipeline: Pipeline) -> None:
    """Those of a cluster's master offer it."""
    application = "app-1"
    if pipeline.cluster is not None:
        shown = strangers.run("curl", "-sS", f"{pipeline.cluster.web}/json/")[1]
        application = json.loads(shown)["activeapps"][0]["id"]
    paths = (
        f"app/kill/?id={application}&terminate=true",
        f"driver/kill/?id={application}&terminate=true",
        "workers/kill/?host=127.0.0.1",
    )
    ports = [port for _, port in pipeline.listening()]
    before = pipeline.java()
    at_once(
        lambda target: strangers.run(
            "curl", "-sS", "-m5", "-XPOST", f"http://127.0.0.1:{target[0]}/{target[1]}"
        ),
        product(ports, paths),
    )
    pipeline.goes_on()
    assert pipeline.java() == before


PLACES = {
    "folder": "mkdir {}",
    "open folder": "mkdir -m 777 {}",
    "link": "ln -s {}/../mine {}",
    "broken link": "ln -s {}/../nowhere {}",
    "file": "touch {}",
    "pipe": "mkfifo -m 666 {}",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_what_a_stranger_made_in_the_place_of_a_folder_is_refused(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp = Path(tempfile.mkdtemp(dir=folder))
    tmp.chmod(0o1777)
    own_folder(tmp / "mine")
    monkeypatch.setattr("tempfile.tempdir", str(tmp))
    sink = Settings.model_validate(MINIMAL | {"sink": {"path": "gs://bucket/orders"}}).sink
    of_readers = tmp / f"slackwater-readers-{os.getuid()}"
    for path in (of_readers, Path(sink.checkpoint)):
        code, answer = strangers.run("bash", "-c", place.format(*2 * [path]))
        assert code == 0, answer
    with pytest.raises(OSError, match=r"not this user's alone|exists"):
        ReaderClient().start_if_missing()
    with pytest.raises(ObjectStoreError, match="the default checkpoint can't be used"):
        sink.claim_places()


def test_the_key_of_what_is_sealed_is_in_a_new_folder_of_this_users_alone() -> None:
    file = Path(seal("x").removeprefix("sealed:").rpartition(":")[0].split(",")[0])
    assert strangers.run("ls", "-d", str(file.parent))[0] == 0
    assert strangers.run("ls", str(file.parent))[0] == 2
    assert strangers.run("cat", str(file))[0] == 1
    assert use_key().files != use_key().files
