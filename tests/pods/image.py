"""What the image has, from this machine's files: a root that is read-only, and a user without
rights."""

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.support.repository import DEPLOY, ROOT

USER: Final = 10001
_HOME: Final = Path("/opt/slackwater")
_ENTRYPOINT: Final = DEPLOY / "entrypoint.sh"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that a container sees at a path."""

    source: Path
    path: str
    read_only: bool


def environment() -> dict[str, str]:
    """Return the variables that the Dockerfile sets, and where this checkout is."""
    return {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SLACKWATER_SPARK_JARS": str(_HOME / "jars"),
        "SLACKWATER_LOG_FORMAT": "json",
        "LANG": "C.UTF-8",
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }


@dataclass(frozen=True, slots=True)
class Container:
    """A container to start.

    Attributes:
        folder: for its root.
        jars: the image's.
        mounts: the pod's volumes.
        hosts: its /etc/hosts, with its own name.
        command: what runs in it; empty for the image's entry point.
        arguments: of the command.
        cgroup: the file that takes the id of a process which is to be in the pod's cgroup.
    """

    folder: Path
    jars: Path
    mounts: list[Mount]
    hosts: Path
    command: list[str]
    arguments: list[str]
    cgroup: Path


def start(container: Container, environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a container: a process with mounts and process ids of its own.

    Args:
        container: what is started.
        environ: its environment.
        log: where its output goes.
    """
    script = container.folder / "start.sh"
    script.write_text(_script(container))
    enter = 'echo $$ >"$0" && exec "$@"'
    unshare = ["unshare", "--mount", "--pid", "--uts", "--fork", "sh", str(script)]
    with log.open("ab") as output:
        return subprocess.Popen(
            ["sh", "-c", enter, str(container.cgroup), *unshare],
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _script(container: Container) -> str:
    root, hosts = container.folder / "root", container.hosts
    command = container.command or ["sh", "/opt/slackwater/entrypoint.sh"]
    binds = [Mount(container.jars, str(_HOME / "jars"), read_only=True), *container.mounts]
    # After the volumes, as one of them covers /tmp, where the project may lie.
    binds += [Mount(path, str(path), read_only=True) for path in _code()]
    lines = []
    for mount in binds:
        target = shlex.quote(f"{root}{mount.path}")
        lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(mount.source))} {target}"]
        if mount.read_only:
            lines.append(f"mount -o remount,ro,bind {target}")
    mounting = "\n".join(lines)
    return f"""set -eu
mount --make-rprivate /
mkdir -p {root} && mount -t tmpfs -o mode=755 tmpfs {root} && cd {root}
mkdir -p usr etc opt/slackwater proc dev sys/fs/cgroup tmp var/lib/slackwater run
for name in bin lib lib64 sbin; do ln -s usr/$name $name; done
mount --bind /usr usr
cp -r /etc/ssl /etc/alternatives /etc/ld.so.cache /etc/nsswitch.conf /etc/passwd /etc/group etc/
for java in /etc/java-*; do cp -r $java etc/; done
echo 'slackwater:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin' >>etc/passwd
touch etc/hosts && mount --bind {hosts} etc/hosts
cp {_ENTRYPOINT} opt/slackwater/entrypoint.sh
mount -t proc proc proc && mount --rbind /dev dev
# Here the JVM reads its limits.
mount --rbind /sys/fs/cgroup sys/fs/cgroup
umask 022 && hostname "$HOSTNAME"
{mounting}
mount -o remount,ro,bind {root}
exec /usr/sbin/chroot {root} /usr/bin/setpriv --reuid {USER} --regid {USER} --groups {USER} \\
  --no-new-privs --bounding-set=-all --inh-caps=-all -- \\
  sh -c 'cd /var/lib/slackwater && exec "$@"' \\
  x {shlex.join([*command, *container.arguments])}
"""


def _code() -> list[Path]:
    """Return the folders from which Python takes this project and what it needs."""
    paths = {Path(sys.base_prefix), Path(sys.prefix), ROOT, *map(Path, sys.path)}
    real = {path.resolve() for path in paths if path.is_dir()}
    real = {path for path in real if not path.is_relative_to("/usr") and path != Path("/")}
    inner = {path for path in real for other in real - {path} if path.is_relative_to(other)}
    return sorted(real - inner)
