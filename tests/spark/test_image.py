"""What the image starts, as far as it goes without a container engine: the same files and entry
point, a user without rights, a root that can't be written to, jars from a folder."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import deltalake
import pytest
import yaml

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.repository import DEPLOY, ROOT
from tests.support.services import settings

USER = 10001


@pytest.mark.long
def test_the_entry_point_runs_without_rights_on_a_read_only_root(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    start_ns = Connection(stream).strong_read_timestamp_ns()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
    written = load.run(transactions_per_second=20, seconds=2)
    subprocess.run(
        [sys.executable, "-m", "slackwater.cli", "jars", str(tmp_path / "jars"), "delta"],
        check=True,
        timeout=120,
    )
    values = settings(stream, Path("/mnt/data"), format_rfc3339(start_ns))
    values["sink"]["format"] = "delta"
    (tmp_path / "slackwater.yaml").write_text(yaml.safe_dump(values))
    shutil.copy(DEPLOY / "entrypoint.sh", tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    script = tmp_path / "container.sh"
    script.write_text(container(tmp_path, "run -c /mnt/slackwater.yaml --until-caught-up"))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-eu", str(script)],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPANNER_EMULATOR_HOST": stream.endpoint.target,
            "SLACKWATER_SPARK_JARS": "/mnt/jars",
            **{n: v for n, v in os.environ.items() if n == "SLACKWATER_SPARK_CLASS_ARCHIVE"},
            "SLACKWATER_LOG_FORMAT": "json",
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "the root can be written to" not in done.stdout
    table = deltalake.DeltaTable(data / "changes").to_pyarrow_table()
    transactions = set(table.column("server_transaction_id").to_pylist())
    assert len(transactions) == written.transactions
    assert {path.stat().st_uid for path in data.rglob("*")} == {USER}


def container(files: Path, arguments: str) -> str:
    """Return a script for its own mount namespace.

    What is run lies in folders that others may not enter, or that are covered by the new /tmp:
    it is mounted again where they can.
    """
    needed = sorted({sys.base_prefix, sys.prefix, str(ROOT)})
    tops = sorted({f"/{Path(path).parts[1]}" for path in (sys.base_prefix,)} - {"/usr"})
    covered = [path for path in needed if path.startswith((*(f"{top}/" for top in tops), "/tmp/"))]
    keep = "\n".join(
        f"mkdir -p /mnt/kept/{number} && mount --rbind {shlex.quote(path)} /mnt/kept/{number}"
        for number, path in enumerate(covered)
    )
    cover = "\n".join(f"mount -t tmpfs -o mode=755 tmpfs {top}" for top in tops)
    restore = "\n".join(
        f"mkdir -p {shlex.quote(path)} && mount --rbind /mnt/kept/{number} {shlex.quote(path)}"
        for number, path in enumerate(covered)
    )
    return f"""
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -r {shlex.quote(str(files))}/* /mnt/ && mkdir -p /mnt/data
mount --bind {shlex.quote(str(files / "data"))} /mnt/data
cp /etc/passwd /mnt/passwd
echo "slackwater:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin" >>/mnt/passwd
mount --bind /mnt/passwd /etc/passwd
{keep}
{cover}
mount -t tmpfs -o mode=1777 tmpfs /tmp
{restore}
mount -o remount,ro /mnt
mount -o remount,ro,bind /
cd /mnt/data
without_rights="setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs"
$without_rights sh -c 'touch /written 2>/dev/null && echo the root can be written to || true'
exec $without_rights /mnt/entrypoint.sh {arguments}
"""
