"""Builds Kubernetes' own programs, once, from their Go modules.

go.mod and go.sum beside this file name every module and its checksum.
"""

import fcntl
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

from tests.support.repository import BUILD

VERSION: Final = "1.33.4"
# It takes eight minutes of processor time, and much longer on a busy machine.
_BUILT_S_MAX: Final = 7_200
_LABELS: Final = "k8s.io/component-base/version"


def programs() -> Path:
    """Return the folder of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl.

    Raises:
        RuntimeError: there is no Go to build them with, or they don't build.
    """
    folder = BUILD / f"control-plane-{VERSION}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "control-plane.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    new = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
    major, minor, _ = VERSION.split(".")
    labels = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    # Without symbol tables the programs are a third smaller.
    linking = " ".join(["-s -w", *(f"-X {_LABELS}.{key}={text}" for key, text in labels.items())])
    print(f"building Kubernetes {VERSION}, which takes several minutes", flush=True)
    built = subprocess.run(
        [go(), "build", "-trimpath", "-ldflags", linking, "-o", f"{new.absolute()}/", "tool"],
        cwd=Path(__file__).parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=_BUILT_S_MAX,
    )
    if built.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        raise RuntimeError(f"Kubernetes' programs don't build:\n{built.stderr[-2_000:]}")
    # Go names a program after the last folder of its module.
    (new / "server").rename(new / "etcd")
    new.rename(folder)


def go() -> str:
    """Return the command `go`.

    Raises:
        RuntimeError: it is not installed.
    """
    command = shutil.which("go")
    if command is None:
        raise RuntimeError(
            "Kubernetes' control plane is built with Go 1.24 or later, which is not on PATH."
            " On Debian 13: apt-get install golang; elsewhere: go.dev/doc/install"
        )
    return command
