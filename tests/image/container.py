"""Runs a container: a process in an image's root, which is read-only, with the image's user."""

import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.image.contents import USER

SETTINGS: Final = "etc/slackwater/slackwater.yaml"


def run(
    root: Path, config: dict[str, Any], arguments: list[str], environ: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the image's entry point.

    Args:
        root: the image's files.
        config: the image's configuration.
        arguments: in place of the image's own; none for these.
        environ: more variables.
        folder: what is mounted: slackwater.yaml, hosts, and data for the working directory.
    """
    variables = dict(variable.split("=", 1) for variable in config["Env"])
    command = [*config["Entrypoint"], *(arguments or config["Cmd"])]
    return subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--uts", "--fork", "sh", "-c", _script(root, folder)),
            *("sh", config["WorkingDir"], *command),
        ],
        env={**variables, "HOSTNAME": "slackwater", **environ},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def _script(root: Path, folder: Path) -> str:
    mounts = {"data": "var/lib/slackwater", "slackwater.yaml": SETTINGS, "hosts": "etc/hosts"}
    binds = "\n".join(
        f"mount --bind {shlex.quote(str(folder / name))} {target}"
        for name, target in mounts.items()
    )
    return f"""set -eu
mount --make-rprivate / && hostname "$HOSTNAME"
cd {shlex.quote(str(root))}
# Where an engine mounts something that the image has not, it makes the place.
mkdir -p $(dirname {SETTINGS}) && touch {SETTINGS} etc/hosts
mount --bind . . && cd "$PWD"
{binds}
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t proc proc proc && mount --rbind /dev dev
mount -o remount,ro,bind . && umask 022
exec /usr/sbin/chroot . /usr/bin/setpriv --reuid {USER} --regid {USER} --clear-groups \\
  --no-new-privs --bounding-set=-all --inh-caps=-all -- /bin/sh -c '
touch /written 2>/dev/null && echo "the root can be written to"
cd "$1" && shift && exec "$@"' sh "$@"
"""
