"""What may lie in the image and what has to: owners, modes, jars, the bill of materials."""

import base64
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

USER: Final = 10001
HOME: Final = "opt/slackwater"
# Debian's folders that all may write to, as long as the root is not read-only.
_FOR_ALL: Final = {"var/tmp", "run/lock"}
_WRITABLE: Final = ("tmp", "var/lib/slackwater")
_NEEDED_JARS: Final = (
    "delta-spark",
    "gcs-connector",
    "hadoop-aws",
    "hadoop-azure",
    "iceberg-spark-runtime",
    "spark-sql-kafka",
)
# Where what a build leaves behind would lie.
_TRACES: Final = ("etc", "home", "opt/sbom", "root", "src", "tmp", "usr/local", "var")
_EMPTY: Final = ("home", "opt/sbom", "src", "tmp", "var/lib/apt/lists")
_SKELETON: Final = {"root/.bashrc", "root/.profile"}


def entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every path in the image, relative to its root, with what lstat says of it."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, root), os.lstat(path)


def require_root_owns_all(root: Path) -> None:
    """Require that the user can change nothing but what is made for it, nor become another."""
    for name, status in entries(root):
        if name.startswith(("proc/", "dev/", "sys/")) or stat.S_ISLNK(status.st_mode):
            continue
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID) or stat.S_ISDIR(status.st_mode), (
            f"/{name} is setuid or setgid"
        )
        if name in _WRITABLE or name in _FOR_ALL:
            continue
        assert USER not in (status.st_uid, status.st_gid), f"/{name} is the user's"
        assert not status.st_mode & stat.S_IWOTH, f"/{name} can be written to by all"
    home = os.lstat(root / "var/lib/slackwater")
    assert (home.st_uid, home.st_gid) == (USER, USER)


def require_no_traces(root: Path) -> None:
    """Require that nothing of the machine that built the image, nor of the build, is in it."""
    assert list((root / "var/cache/apt").rglob("*.deb")) == []
    for name in _EMPTY:
        left = [path for path in (root / name).rglob("*") if path.is_file()]
        assert left == [], f"left from the build: {left[:5]}"
    in_root = {str(path.relative_to(root)) for path in (root / "root").rglob("*")}
    assert in_root <= _SKELETON, in_root
    own = list(_own_certificates())
    for folder in _TRACES:
        for path in (root / folder).rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            content = path.read_bytes()
            assert not any(form in content for form in own), f"{path} has a certificate"
            assert b"PRIVATE KEY-----" not in content, f"{path} has a key"
    pip = root / "etc/pip.conf"
    assert not pip.exists()
    assert list((root / "etc/apt/apt.conf.d").glob("*proxy*")) == []


def _own_certificates() -> Iterator[bytes]:
    """Yield the certificates that were added on this machine, in the forms of files and of Java."""
    for file in Path("/usr/local/share/ca-certificates").rglob("*.crt"):
        lines = file.read_text().split("-----")[2].split()
        yield lines[1].encode()
        yield base64.b64decode("".join(lines))


def require_environment(config: dict[str, Any]) -> None:
    """Require an image whose user is not root, and whose variables are those of the Dockerfile."""
    assert config["User"] == f"{USER}:{USER}"
    names = {variable.partition("=")[0] for variable in config["Env"]}
    ours = {name for name in names if not name.startswith(("SLACKWATER_", "SPARK_HOME"))}
    # Python's own image sets the others.
    assert ours <= {"PATH", "PYTHONUNBUFFERED", "LANG", "GPG_KEY", "PYTHON_VERSION"}


def require_jars(root: Path) -> None:
    """Require the jars of all sinks and of the connectors to object stores."""
    names = [path.name for path in (root / HOME / "jars").glob("*.jar")]
    for needed in _NEEDED_JARS:
        assert any(f"_{needed}" in name for name in names), f"{needed} is not among {names}"


def require_bill_of_materials(root: Path) -> None:
    """Require each package and each jar in it, with a licence, and in the list of licences."""
    home = root / HOME
    bill = json.loads((home / "sbom.cdx.json").read_text())
    components = bill["components"]
    packages = {
        (_normalized(component["name"]), component["version"])
        for component in components
        # What was installed from a folder, as we are, has no purl.
        if not component.get("purl", "").startswith(("pkg:maven/", "pkg:generic/"))
    }
    installed = set(_installed(home))
    assert len(installed) > 50
    assert installed <= packages, installed - packages
    places = {
        place["location"]
        for component in components
        for place in component.get("evidence", {}).get("occurrences", ())
    }
    jars = {str(path.relative_to(home)) for path in home.rglob("*.jar")}
    assert jars <= places, jars - places
    listed = (home / "licenses.txt").read_text()
    for component in components:
        assert component["licenses"], component["name"]
        assert f"{component['name']} {component.get('version', '')}" in listed


def unnamed_licenses(root: Path) -> list[str]:
    """Return the names of what has no licence that could be found."""
    bill = json.loads((root / HOME / "sbom.cdx.json").read_text())
    return [
        component["name"]
        for component in bill["components"]
        if {"license": {"name": "NOASSERTION"}} in component["licenses"]
    ]


def _installed(home: Path) -> Iterator[tuple[str, str]]:
    for file in home.glob("lib/python*/site-packages/*.dist-info/METADATA"):
        metadata = HeaderParser().parsestr(file.read_text())
        yield _normalized(metadata["Name"]), metadata["Version"]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sizes(root: Path) -> Counter[str]:
    """Return the bytes of the files below each folder of the image, its largest parts apart."""
    parts = ("opt/slackwater/lib/python3.11/site-packages", HOME, "usr/lib", "usr", "var")
    total: Counter[str] = Counter()
    for name, status in entries(root):
        if stat.S_ISREG(status.st_mode):
            within = next((part for part in parts if name.startswith(f"{part}/")), "")
            total[
                "/".join([*filter(None, [within]), name[len(within) :].split("/")[within != ""]])
            ] += status.st_size
    return total


def spare_bytes(root: Path) -> dict[str, int]:
    """Return the sizes of what could be missed, by its kind."""
    spare: Counter[str] = Counter()
    for name, status in entries(root):
        if name.endswith(".pyc"):
            spare["compiled Python"] += status.st_size
        elif re.search(r"/(tests?|testing|examples)/", name):
            spare["tests and examples"] += status.st_size
        elif name.startswith(("usr/share/doc/", "usr/share/man/", "usr/share/locale/")):
            spare["documentation and locales"] += status.st_size
    bill = json.loads((root / HOME / "sbom.cdx.json").read_text())
    for component in bill["components"]:
        _, *others = component.get("evidence", {}).get("occurrences", ()) or [{}]
        spare["jars that are there twice"] += sum(
            (root / HOME / other["location"]).stat().st_size for other in others
        )
    return dict(spare)


def only_on_amd64(root: Path) -> list[str]:
    """Return the jars with libraries for Linux on x86-64 and none for Linux on 64-bit ARM."""
    lacking = []
    for jar in sorted((root / HOME).rglob("*.jar")):
        with ZipFile(jar) as archive:
            libraries = [name for name in archive.namelist() if re.search(r"\.(so|jnilib)$", name)]
        on = {
            processor
            for name in libraries
            for processor, form in (("amd64", r"x86.?64|amd64|linux64"), ("arm64", "aarch|arm64"))
            if re.search(form, name, re.IGNORECASE)
        }
        if on == {"amd64"}:
            lacking.append(jar.name)
    return lacking
