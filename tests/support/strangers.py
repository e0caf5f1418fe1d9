"""Another user of this machine, who has a shell and a JVM with Spark's classes."""

import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from slackwater.pipeline.spark.java import find_java

NAME = "nobody"
_SECONDS_MAX = 120
# How long a port may say nothing to what it does not take. At one of Spark's JVM nobody answers.
_SILENT_S = 5
_LOCAL = "LocalSchedulerBackendEndpoint"
# What is compiled twice, or collected side by side, takes longer than it saves.
_SHORT_LIFE = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# What Spark asks of Java 17 for itself.
_OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "sun.nio.ch")


def become() -> list[str]:
    """Return how a command begins that runs as the other user; fail if this user may not."""
    if os.getuid() == 0:
        group = pwd.getpwnam(NAME).pw_gid
        return ["setpriv", f"--reuid={NAME}", f"--regid={group}", "--clear-groups"]
    sudo = ["sudo", "-n", "-u", NAME]
    try:
        subprocess.run([*sudo, "true"], check=True, capture_output=True, timeout=_SECONDS_MAX)
    except (OSError, subprocess.CalledProcessError):
        pytest.fail(
            f"to attack a pipeline as the user {NAME}, these tests need root, or a sudo that asks"
            f" for no password: `sudo -n -u {NAME} true` fails"
        )
    return sudo


def run(*command: str, written: bytes = b"") -> tuple[int, str]:
    """Run a command as the other user, and return its exit code and what it printed."""
    done = subprocess.run(
        [*become(), *command],
        input=written,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        timeout=_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def sent(port: int, message: bytes) -> str:
    """Send bytes to a port of this machine, and return the answer up to its end or a silence."""
    conversation = f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat >&3 && cat <&3"
    return run("timeout", str(_SILENT_S), "bash", "-c", conversation, written=message)[1]


@contextmanager
def idle(ports: Sequence[int], number: int) -> Iterator[None]:
    """Have so many connections to each of the ports, over which nothing is said.

    Some ports let only a few wait. So half of the ports are waited for.
    """
    script = """
        ulimit -n "$(ulimit -Hn)"
        for port in "${@:2}"; do (
            for ((i = 0; i < $1; i++)); do exec {connection}<>"/dev/tcp/127.0.0.1/$port"; done
            echo connected
            sleep infinity
        ) & done
        read -r
        kill 0
    """
    command = [*become(), "bash", "-c", script, "bash", str(number), *map(str, ports)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for _ in ports[::2]:
                assert process.stdout.readline() == b"connected\n"
            yield
        finally:
            process.stdin.close()


class StrangersSpark:
    """Spark's own clients in a JVM of the other user.

    It runs a Spark of its own, which asks for no secret: what its clients are refused by a
    pipeline's Spark, they get from this one.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        self.jvm: Any = gateway.jvm
        self.py4j_port: int = gateway.gateway_parameters.port
        conf = self._conf(None)
        conf.setMaster("local[1]").setAppName("stranger")
        self._context = self.jvm.org.apache.spark.SparkContext(conf)
        self._context.setLogLevel("OFF")
        self._environment = self.jvm.org.apache.spark.SparkEnv.get()
        self.rpc_port: int = self._environment.rpcEnv().address().port()
        self.block_port: int = self._environment.blockManager().blockManagerId().port()

    def broadcast(self, text: str) -> str:
        """Have this Spark hold a text in a block, and return the block's name."""
        java = self.jvm.org.apache.spark.api.java.JavaSparkContext(self._context)
        return f"broadcast_{java.broadcast(text).id()}_piece0"

    def block(self, port: int, name: str) -> str:
        """Return a block of the Spark at a port, or why there is none."""
        transfer = self._environment.blockManager().blockTransferService()
        try:
            buffer = transfer.fetchBlockSync("127.0.0.1", port, "driver", name, None)
        except Py4JError as error:
            return str(error)
        content = buffer.nioByteBuffer()
        return bytes(content.get(i) & 0xFF for i in range(content.remaining())).decode("latin-1")

    def stop(self, port: int, guess: str | None) -> str | None:
        """Stop the executors of the Spark at a port; return why they are not.

        Args:
            port: of its RPC.
            guess: the secret of the cluster; None to show none.
        """
        spark, conf = self.jvm.org.apache.spark, self._conf(guess)
        manager = spark.SecurityManager(conf, self.jvm.scala.Option.empty(), None)
        environment = spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, manager, True)
        address = spark.rpc.RpcAddress("127.0.0.1", port)
        of_answer = getattr(self.jvm.java.lang, "Class").forName("java.lang.Object")  # noqa: B009
        tag = self.jvm.scala.reflect.ClassTag.apply(of_answer)
        try:
            endpoint = environment.setupEndpointRef(address, _LOCAL)
            endpoint.askSync(singleton(spark.scheduler.local, "StopExecutor"), tag)
        except Py4JError as error:
            return str(error)
        finally:
            environment.shutdown()
        return None

    def works(self) -> bool:
        """Return whether a job of this Spark gets done."""
        java = self.jvm.org.apache.spark.api.java.JavaSparkContext(self._context)
        rows = self.jvm.java.util.ArrayList()
        rows.add("row")
        try:
            return bool(java.parallelize(rows).count() == 1)
        except Py4JError:
            return False

    def _conf(self, guess: str | None) -> Any:
        conf = self.jvm.org.apache.spark.SparkConf(False)
        values = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.network.timeout": "10s",
            "spark.rpc.askTimeout": "10s",
            "spark.rpc.lookupTimeout": "10s",
            "spark.network.timeoutInterval": "10s",
            "spark.executor.heartbeatInterval": "5s",
            "spark.shuffle.io.maxRetries": "0",
        }
        if guess is not None:
            values |= {
                "spark.authenticate": "true",
                "spark.authenticate.secret": guess,
                "spark.network.crypto.enabled": "true",
            }
        for name, value in values.items():
            conf.set(name, value)
        return conf


def singleton(package: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


@contextmanager
def spark() -> Iterator[StrangersSpark]:
    """Run the other user's JVM."""
    jars = Path(str(pyspark.__file__)).parent / "jars"
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    java = [str(find_java().resolve()), *_SHORT_LIFE, *opened, "-cp", f"{jars}/*"]
    command = [*become(), *java, "py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=_environment()
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, f"{command} did not start: the user {NAME} has to be able to read {jars}"
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(port)))
        try:
            yield StrangersSpark(gateway)
        finally:
            # Its Spark, without executors, would take its time to stop.
            pid = gateway.jvm.java.lang.ProcessHandle.current().pid()
            gateway.shutdown()
            run("kill", "-KILL", str(pid))


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "SPARK_LOCAL_IP": "127.0.0.1", "LANG": "C.UTF-8"}
