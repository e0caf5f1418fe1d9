"""The Cloud Spanner emulator, found and run."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import grpc

from slackwater.errors import EmulatorFailedError, EmulatorNotFoundError
from slackwater.testing.parent import DIE_WITH_PARENT

IMAGE: Final = "gcr.io/cloud-spanner-emulator/emulator"
_IN_SDK: Final = Path("bin/cloud_spanner_emulator/emulator_main")
_SDK_FOLDERS: Final = (
    "/usr/lib/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
    "~/google-cloud-sdk",
)
_HINT: Final = (
    "Install it in one of these ways: Debian and Ubuntu with Google's package source:"
    " apt-get install google-cloud-cli-spanner-emulator; with the Google Cloud SDK:"
    " gcloud components install cloud-spanner-emulator; or have docker running. Or set"
    " SPANNER_EMULATOR_PATH to emulator_main, or SPANNER_EMULATOR_HOST to a running emulator"
)
_START_SECONDS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Emulator:
    """A running emulator, at HOST:PORT."""

    host: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a process uses it."""
        return {"SPANNER_EMULATOR_HOST": self.host}


def find_emulator(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that starts the emulator, without its arguments.

    It is looked for in SPANNER_EMULATOR_PATH, on PATH, in the Google Cloud SDK, and as a docker
    image.

    Raises:
        EmulatorNotFoundError: it is not installed; the hint says how to get it.
    """
    program = environ.get("SPANNER_EMULATOR_PATH")
    if program:
        if not os.access(program, os.X_OK):
            raise EmulatorNotFoundError(
                f"SPANNER_EMULATOR_PATH is {program}, which is not an executable file.", _HINT
            )
        return [program]
    path = environ.get("PATH")
    candidates = [shutil.which("emulator_main", path=path)]
    candidates += [str(folder / _IN_SDK) for folder in _sdk_folders(environ)]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return [candidate]
    docker = shutil.which("docker", path=path)
    if docker and _docker_answers(docker):
        # The host's network, so that the emulator listens on the requested port.
        return [docker, "run", "--rm", "--init", "--network", "host", IMAGE, "./emulator_main"]
    raise EmulatorNotFoundError("the Cloud Spanner emulator was not found.", _HINT)


def _sdk_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    if root := environ.get("CLOUDSDK_ROOT_DIR"):
        yield Path(root)
    if gcloud := shutil.which("gcloud", path=environ.get("PATH")):
        yield Path(gcloud).resolve().parent.parent
    for folder in _SDK_FOLDERS:
        yield Path(folder).expanduser()


def _docker_answers(docker: str) -> bool:
    try:
        info = subprocess.run(  # noqa: S603 - the user's docker
            [docker, "info"], capture_output=True, timeout=10, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return info.returncode == 0


@contextmanager
def running_emulator(
    *,
    partition_alive_seconds: int | None = None,
    arguments: Sequence[str] = (),
    log: Path | None = None,
    port: int | None = None,
) -> Iterator[Emulator]:
    """Run an emulator while the context is open; use the one at SPANNER_EMULATOR_HOST if it is set.

    Args:
        partition_alive_seconds: how long a change stream partition lives before it splits, merges
            or moves; None for the emulator's default.
        arguments: further flags of emulator_main.
        log: the file for its output; None for none.
        port: on 127.0.0.1; None for a free one.

    Raises:
        EmulatorNotFoundError: it is not installed.
        EmulatorFailedError: it does not start within 30 s.
    """
    if host := os.environ.get("SPANNER_EMULATOR_HOST"):
        wait_until_ready(host)
        yield Emulator(host)
        return
    host = f"127.0.0.1:{port or free_port()}"
    command = [*find_emulator(), f"--host_port={host}", *arguments]
    if partition_alive_seconds is not None:
        command.append(
            f"--override_change_stream_partition_token_alive_seconds={partition_alive_seconds}"
        )
    output: IO[bytes] | int = log.open("wb") if log else subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - the emulator's command
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=DIE_WITH_PARENT,
    )
    try:
        wait_until_ready(host, process)
        yield Emulator(host)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(output, int):
            output.close()


def wait_until_ready(host: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until an emulator accepts connections.

    Raises:
        EmulatorFailedError: it has ended, or 30 s have passed.
    """
    with grpc.insecure_channel(host) as channel:
        ready = grpc.channel_ready_future(channel)
        for _ in range(_START_SECONDS_MAX):
            try:
                ready.result(timeout=1)
            except grpc.FutureTimeoutError:
                if process is not None and process.poll() is not None:
                    break
            else:
                return
    raise EmulatorFailedError(
        f"no Cloud Spanner emulator answers at {host}.",
        "If SPANNER_EMULATOR_HOST is set, start the emulator there or unset the variable",
    )


def free_port() -> int:
    """Return a free port of this machine's loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
