"""Spark's processes on one machine listen where no other machine is, and ask for a secret."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from slackwater.pipeline.spark.jvm import application_secret, jvm_process
from slackwater.sealing import seal

_SECONDS_MAX = 60.0
# What Spark says of a message that does not prove that its sender has the secret.
_REFUSED = "Unknown challenge message"


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.fixture(scope="module")
def jvm(session: SparkSession) -> psutil.Process:
    process = jvm_process()
    assert process is not None
    return psutil.Process(process.pid)


@pytest.fixture
def gateway(session: SparkSession) -> Any:
    return SparkContext._gateway


def test_no_port_of_spark_is_reached_from_another_machine(jvm: psutil.Process) -> None:
    ports = [*listening(jvm), *listening(psutil.Process())]
    # Of the JVM: py4j's, Spark's RPC and its blocks; of this process: py4j's for callbacks.
    assert len(listening(jvm)) >= 3
    assert {address for address, _ in ports} == {"127.0.0.1"}


class Client:
    """A stranger's client of Spark's transport, in the same JVM only because it has the classes."""

    def __init__(self, session: SparkSession) -> None:
        java: Any = session._jvm
        network = java.org.apache.spark.network
        conf = network.util.TransportConf("rpc", network.util.MapConfigProvider.EMPTY)
        self.context = network.TransportContext(conf, network.server.NoOpRpcHandler())
        self._factory = self.context.createClientFactory()
        gateway: Any = SparkContext._gateway
        names = gateway.new_array(java.java.lang.String, 1)
        names[0] = "broadcast_0_piece0"
        opening = network.shuffle.protocol.OpenBlocks("app", "driver", names)
        self._open_blocks = opening.toByteBuffer

    def answer(self, port: int) -> str:
        """Return what the server at a port answers to a request for blocks."""
        client = self._factory.createClient("127.0.0.1", port)
        try:
            return str(client.sendRpcSync(self._open_blocks(), int(_SECONDS_MAX * 1_000)))
        except Py4JError as error:
            return str(error)
        finally:
            client.close()

    def close(self) -> None:
        self._factory.close()
        self.context.close()


@pytest.fixture
def client(session: SparkSession) -> Iterator[Client]:
    made = Client(session)
    yield made
    made.close()


def test_a_stranger_gets_no_blocks(session: SparkSession, client: Client) -> None:
    java: Any = session._jvm
    assert application_secret(session)
    blocks = java.org.apache.spark.SparkEnv.get().blockManager().blockManagerId()
    for port in (blocks.port(), int(session.conf.get("spark.driver.port", "0") or 0)):
        assert _REFUSED in client.answer(port)


def test_a_server_without_a_secret_takes_the_same_request(
    session: SparkSession, client: Client
) -> None:
    """Otherwise the test above could not fail."""
    java: Any = session._jvm
    server = client.context.createServer("127.0.0.1", 0, java.java.util.ArrayList())
    answer = client.answer(server.getPort())
    server.close()
    assert "Cannot handle messages" in answer
    assert _REFUSED not in answer


@pytest.mark.parametrize("token", [None, "a guess"])
def test_calls_into_this_process_need_a_token(token: str | None, gateway: Any) -> None:
    answer = b""
    # Each step may find the connection reset.
    with (
        suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", gateway._callback_server.port), 60) as stranger,
    ):
        if token is not None:
            stranger.sendall(f"A\n{token}\ne\n".encode())
        stranger.sendall(b"c\nt\ngetCallSite\ne\n")
        while part := stranger.recv(1_000):
            answer += part
    # What refuses a token is the answer to it; nothing is called.
    assert answer in (b"", b"!xn\n")


def test_calls_into_the_jvm_need_a_token(gateway: Any) -> None:
    port = gateway.gateway_parameters.port
    parameters = type(gateway.gateway_parameters)(port=port, auth_token="a guess")
    stranger = JavaGateway(gateway_parameters=parameters)
    with pytest.raises(Py4JError):
        stranger.jvm.java.lang.System.getProperty("user.home")


def test_arguments_and_environment_of_the_jvm_hold_no_settings(jvm: psutil.Process) -> None:
    assert "spark.master" not in " ".join(jvm.cmdline())
    assert not [name for name in jvm.environ() if name.startswith("SLACKWATER_")]


def test_the_key_of_what_is_sealed_is_this_users_alone() -> None:
    file = Path(seal("x").removeprefix("sealed:").rpartition(":")[0].split(",")[0])
    assert file.stat().st_uid == os.getuid()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
