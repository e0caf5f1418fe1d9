"""Buildah, with a storage of its own, and the base image that no registry has to be reached for."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from slackwater.pipeline.spark.jar_cache import ivy_folder
from slackwater.pipeline.spark.java import find_java
from tests.support import kafka_broker
from tests.support.repository import DEPLOY, ROOT

DOCKERFILE: Final = DEPLOY / "Dockerfile"
# Python's own image has Python in /usr/local, too, and the same sources of packages.
_BASE: Final = r"""FROM scratch
COPY rootfs /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin
RUN sed -i -E /etc/apt/sources.list \
      -e "p;s/ bookworm / bookworm-updates /p" \
      -e "s/(\S+) bookworm-updates/\1-security bookworm-security/" \
 && apt-get update && apt-get install -y --no-install-recommends python3.11-venv \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/bootstrap.log \
 && ln -s ../../bin/python3.11 /usr/local/bin/python
"""
_PROGRAMS: Final = ("buildah", "debootstrap", "unshare", "ip")
_HOME: Final = "/root"
_CERTIFICATES: Final = "/etc/ssl/certs/of-the-build.crt"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image: the instruction that made it, and its size in bytes."""

    instruction: str
    size: int


class Buildah:
    """Builds and opens images in one folder."""

    def __init__(self, folder: Path) -> None:
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        if missing or os.getuid() != 0:
            sys.exit(
                f"This needs root and {missing}; on Debian: apt-get install buildah debootstrap"
            )
        self._folder = folder
        self._storage = folder / "storage"

    def __call__(self, *arguments: str | Path) -> str:
        """Run a command of buildah's and return its output."""
        command = self._command(arguments)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    def _build(self, *arguments: str | Path) -> None:
        # Java asks for the address of the host's name, which an engine would have in /etc/hosts.
        arguments = ("--uts", "host", *arguments)
        command = self._command(["bud", "--isolation", "chroot", *arguments])
        subprocess.run(command, check=True)

    def _command(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        where: list[str | Path] = ["--root", self._storage, "--runroot", self._folder / "run"]
        return ["buildah", *where, "--storage-driver", "overlay", *arguments]

    def make_base(self) -> None:
        """Make the image that the Dockerfile asks for, of Debian's packages, if it is not there."""
        name = f"docker.io/library/{base_image()}"
        if name in self("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        context = self._folder / "base"
        # What it mounts is gone with it, however it ends.
        subprocess.run(
            [
                *("unshare", "--mount", "debootstrap", "--variant=minbase"),
                *("--include=ca-certificates", "bookworm", str(context / "rootfs")),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for package in (context / "rootfs" / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            package.unlink()
        (context / "Dockerfile").write_text(_BASE)
        self._build("--tag", name, context)
        shutil.rmtree(context)

    def build(self, context: Path, tag: str) -> str:
        """Run all steps of the Dockerfile, and return the image's id.

        Only the steps of the stage `build` get this machine's ways to the registries of packages.
        The second run takes that stage as it is.
        """
        file = context / DOCKERFILE.relative_to(ROOT)
        same = ["--layers", "--pull-never", "--file", str(file)]
        self._build(*same, *self._machine_volumes(), "--target", "build", context)
        self._build(*same, "--tag", tag, context)
        return self("images", "--quiet", "--no-trunc", tag).rpartition(":")[2]

    def _machine_volumes(self) -> list[str]:
        """Return the volumes by which pip and Java trust and find what they do on this machine."""
        folder = self._folder / "machine"
        folder.mkdir(exist_ok=True)
        settings = configparser.ConfigParser()
        settings["global"] = {**_pip_settings(), "cert": _CERTIFICATES}
        with (folder / "pip.conf").open("w") as file:
            settings.write(file)
        # Debian's package adds its certificates to those that are there.
        java = find_java().resolve().parent.parent / "lib" / "security" / "cacerts"
        shutil.copy(java, folder / "cacerts")
        # What was fetched before is not fetched again; a copy, so that this build has it alone.
        cache = ivy_folder(None)
        shutil.copytree(cache, folder / "ivy", dirs_exist_ok=True)
        _stand_in_jar(folder / "m2")
        volumes = {
            folder / "ivy": f"{_HOME}/{cache.name}",
            folder / "m2": f"{_HOME}/.m2/repository:ro",
            folder / "pip.conf": "/etc/pip.conf:ro",
            folder / "cacerts": "/etc/ssl/certs/java/cacerts",
            Path("/etc/ssl/certs/ca-certificates.crt"): f"{_CERTIFICATES}:ro",
        }
        return [f"--volume={source}:{target}" for source, target in volumes.items()]

    def config(self, image: str) -> dict[str, Any]:
        """Return an image's configuration: User, Env, Entrypoint, Cmd and so on."""
        described: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))
        config: dict[str, Any] = described["OCIv1"]["config"]
        return config

    def layers(self, image: str) -> list[Layer]:
        """Return the layers of an image, from the base's on."""
        [stored] = [one for one in self._stored("image") if one["id"] == image]
        by_id = {one["id"]: one for one in self._stored("layer")}
        sizes: list[int] = []
        layer = by_id.get(stored["layer"])
        while layer is not None:
            sizes.insert(0, layer["diff-size"])
            layer = by_id.get(layer.get("parent", ""))
        history = json.loads(self("inspect", "--type", "image", image))["OCIv1"]["history"]
        made = [step for step in history if not step.get("empty_layer")]
        steps = [re.sub(r"\s+", " ", step.get("created_by", "")) for step in made]
        return [Layer(step, size) for step, size in zip(steps, sizes, strict=True)]

    def _stored(self, kind: str) -> list[dict[str, Any]]:
        file = self._storage / f"overlay-{kind}s" / f"{kind}s.json"
        stored: list[dict[str, Any]] = json.loads(file.read_text())
        return stored

    @contextmanager
    def opened(self, image: str) -> Iterator[Path]:
        """Yield the path of a root file system made from an image."""
        container = self("from", "--pull-never", image)
        try:
            yield Path(self("mount", container))
        finally:
            self("umount", container)
            self("rm", container)

    def remove_all(self) -> None:
        """Remove all containers and images, and the folder."""
        self("rm", "--all")
        self("rmi", "--all", "--force")
        # Which buildah mounts on itself.
        subprocess.run(
            ["umount", str(self._storage / "overlay")], check=False, stderr=subprocess.DEVNULL
        )
        shutil.rmtree(self._folder)


def base_image() -> str:
    """Return the base image that the Dockerfile asks for if its user names none."""
    [name] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    return str(name)


def _stand_in_jar(repository: Path) -> None:
    """Put a jar that the tests' registry of packages lacks into a repository of Maven's."""
    version, jar = pyspark.__version__, kafka_broker.token_provider()
    name = jar.name.removesuffix(f"-{kafka_broker.TOKEN_PROVIDER_VERSION}.jar")
    folder = repository / "org" / "apache" / "spark" / name / version
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(jar, folder / f"{name}-{version}.jar")
    (folder / f"{name}-{version}.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.apache.spark</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version></project>"
    )


def _pip_settings() -> dict[str, str]:
    """Return pip's settings on this machine, without those that name other files."""
    command: Sequence[str] = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE)
    return {name: value for name, value in lines if name not in {"cert", "find-links"}}
