"""The image, built by all steps of deploy/Dockerfile, looked at and run.

`python -m tests.proofs.image_build` builds it with buildah, without a daemon, from a base image
that is made of Debian's packages: no registry of images is needed. It requires that the image has
what it should and nothing of the machine that built it, prints its sizes, and runs a pipeline into
Delta in it: as the image's user, on a read-only root, in a network with nothing but the emulator.
`--arm64` only fetches the wheels of the lock file for 64-bit ARM. It needs root and 12 GB.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import yaml

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.image import contents
from tests.image.buildah import Buildah
from tests.image.container import run
from tests.support.emulators import own_database
from tests.support.repository import ROOT
from tests.support.services import settings

TAG = "localhost/slackwater:proof"


def look_at(root: Path, config: dict[str, Any]) -> None:
    """Require what the image must and must not have."""
    contents.require_environment(config)
    contents.require_root_owns_all(root)
    contents.require_no_traces(root)
    contents.require_jars(root)
    contents.require_bill_of_materials(root)


def print_sizes(builder: Buildah, image: str, root: Path) -> None:
    layers = builder.layers(image)
    print(f"{sum(layer.size for layer in layers) / 1e6:,.0f} MB in {len(layers)} layers")
    for layer in layers:
        print(f"{layer.size / 1e6:9,.1f} MB  {layer.instruction[:100]}")
    print("largest folders:")
    for name, size in contents.sizes(root).most_common(25):
        print(f"{size / 1e6:9,.1f} MB  /{name}")
    print("what could be missed:")
    for name, size in contents.spare_bytes(root).items():
        print(f"{size / 1e6:9,.1f} MB  {name}")
    print("without a licence:", contents.unnamed_licenses(root))
    print("native code for amd64 only:", contents.only_on_amd64(root))


def run_pipeline(root: Path, config: dict[str, Any], folder: Path) -> None:
    """Run the program and a pipeline in the image, where no registry of packages can be reached."""
    data = folder / "data"
    data.mkdir()
    os.chown(data, contents.USER, contents.USER)
    (folder / "hosts").write_text("127.0.0.1 localhost slackwater\n")
    (folder / "slackwater.yaml").touch()
    said = run(root, config, ["--version"], {}, folder)
    assert said.returncode == 0, said.stderr
    print(f"slackwater --version: {said.stdout.strip()}")
    with own_database() as stream:
        start_ns = Connection(stream).strong_read_timestamp_ns()
        written = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1).run(
            transactions_per_second=20, seconds=5
        )
        values = settings(stream, Path("/var/lib/slackwater"), format_rfc3339(start_ns))
        values["sink"]["format"] = "delta"
        (folder / "slackwater.yaml").write_text(yaml.safe_dump(values))
        environ = {"SPANNER_EMULATOR_HOST": stream.endpoint.target}
        done = run(root, config, [*config["Cmd"], "--until-caught-up"], environ, folder)
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-3_000:]}"
    output = done.stdout + done.stderr
    assert "the root can be written to" not in output
    # Java's warning of an archive that does not fit.
    assert "[cds" not in output, output[-3_000:]
    table = deltalake.DeltaTable(data / "changes").to_pyarrow_table()
    transactions = set(table.column("server_transaction_id").to_pylist())
    assert len(transactions) == written.transactions
    assert {path.stat().st_uid for path in data.rglob("*")} == {contents.USER}
    print(f"a pipeline wrote {table.num_rows} changes of {len(transactions)} transactions to Delta")


def fetch_arm64_wheels() -> None:
    """Fetch the locked packages' wheels for 64-bit ARM; pip compares them with the hashes."""
    text = (ROOT / "requirements.runtime.lock").read_text()
    # PySpark is sources without native code.
    [(pyspark, _)] = re.findall(r"^(pyspark==.*\n(    .*\n)+)", text, re.MULTILINE)
    # Debian 12 has glibc 2.36.
    forms = ["2014", *(f"_2_{minor}" for minor in range(17, 37))]
    platforms = [f"--platform=manylinux{form}_aarch64" for form in forms]
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch, "lock")
        lock.write_text(text.replace(pyspark, ""))
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--require-hashes", "--only-binary=:all:", "--python-version=3.11"),
                *platforms,
                *("--dest", scratch, "--requirement", str(lock)),
            ],
            check=True,
        )
        wheels = sorted(path.name for path in Path(scratch).glob("*.whl"))
    native = [name for name in wheels if "aarch64" in name]
    print(f"{len(wheels)} wheels for arm64, {len(native)} of them with native code")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arm64", action="store_true", help="fetch the wheels for arm64 only")
    parser.add_argument("--folder", type=Path, help="where to build, to be left with all layers")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm64:
        fetch_arm64_wheels()
        return
    if options.run:
        root, config = json.loads(options.run.read_text())
        run_pipeline(Path(root), config, options.run.parent)
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))
    builder = Buildah(folder)
    try:
        builder.make_base()
        image = builder.build(ROOT, TAG)
        config = builder.config(image)
        with builder.opened(image) as root, tempfile.TemporaryDirectory(dir=folder) as scratch:
            look_at(root, config)
            print_sizes(builder, image, root)
            (Path(scratch) / "run.json").write_text(json.dumps([str(root), config]))
            again = [
                sys.executable,
                "-m",
                "tests.proofs.image_build",
                "--run",
                f"{scratch}/run.json",
            ]
            alone = 'ip link set lo up && exec "$@"'
            subprocess.run(["unshare", "--net", "sh", "-c", alone, "sh", *again], check=True)
    finally:
        if options.folder is None:
            builder.remove_all()
    print("ok")


if __name__ == "__main__":
    main()
