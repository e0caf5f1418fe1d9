"""A newcomer who follows docs/quickstart.md word for word gets what it says."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.repository import DOCS, ROOT


def test_the_quick_start_runs_word_for_word(tmp_path: Path) -> None:
    page = (DOCS / "quickstart.md").read_text()
    commands = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(commands) == 8
    folder = ROOT / "out" / "quickstart"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    script = tmp_path / "commands"
    # What fails takes along what the commands before it have started.
    script.write_text(f"trap 'kill 0' ERR\n{''.join(commands)}")
    environ = {k: v for k, v in os.environ.items() if k != "SPANNER_EMULATOR_HOST"}
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", str(script)],
            cwd=ROOT,
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(timeout=540)
        finally:
            # Also what it has left behind when it failed.
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    said = log.read_text()
    assert shell.returncode == 0, said[-3_000:]
    assert re.search(r"^\S+Z (INSERT|UPDATE|DELETE) ", said, re.MULTILINE)
    assert said.count("\nok ") >= 5
    assert re.search(r"^state +running$", said, re.MULTILINE)
    records = re.search(r"^(\d+) records$", said, re.MULTILINE)
    assert records
    assert int(records.group(1)) >= 1
    for answer in ("orders: is paused", "orders: goes on", "orders: has finished its epoch"):
        assert answer in said
