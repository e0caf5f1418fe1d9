"""The demonstration leaves no process behind, however it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.long
WAIT_S_MAX = 180


@pytest.mark.timeout(500)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_demonstration_that_is_ended_leaves_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "slackwater.cli", "demo", "--directory", str(tmp_path / "demo")],
            stdout=out,
            stderr=out,
        )
    until = time.monotonic() + WAIT_S_MAX
    while b"Writing" not in output.read_bytes():
        assert demo.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.1)
    tree = psutil.Process(demo.pid).children(recursive=True)
    # The emulator, the service, its JVM and workers.
    assert len(tree) > 3
    demo.send_signal(number)
    assert demo.wait(WAIT_S_MAX) != 0
    _, alive = psutil.wait_procs(tree, timeout=WAIT_S_MAX)
    assert not alive
