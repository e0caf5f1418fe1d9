"""A pipeline as a process of its own, to be killed and started again."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import yaml

from slackwater.errors import PipelineFailedError
from slackwater.state.errors import StateError
from slackwater.state.store import Store
from slackwater.testing.parent import DIE_WITH_PARENT
from slackwater.timestamp import format_rfc3339, ns_to_seconds

# An epoch is read to its end first, which takes minutes on a machine with much else to do.
_STOP_SECONDS_MAX = 600
_SAY_EVERY_S = 15


class Service:
    """A process of `slackwater run` with a settings file.

    Args:
        settings: the content of the file.
        directory: where the file and the log go.
        environ: the process's environment.
        dies_with_parent: on Linux, the process is killed when the thread that started it has ended.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        directory: Path,
        environ: Mapping[str, str],
        *,
        dies_with_parent: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory.resolve() / "slackwater.yaml"
        # It may hold a password.
        self.config.touch(mode=0o600)
        self.config.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
        self.log = directory / "run.log"
        # The Python that runs the program; another one may have another version of it.
        self.python = sys.executable
        self._settings = settings
        self._environ = dict(environ)
        self._before_exec = DIE_WITH_PARENT if dies_with_parent else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start the process."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [self.python, "-m", "slackwater.cli", "run", "-c", str(self.config), *arguments],
                env=self._environ,
                # Nothing may depend on the project's folder.
                cwd=self.config.parent,
                stdout=log,
                stderr=log,
                preexec_fn=self._before_exec,
            )

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._process is not None  # noqa: S101 - started before
        return self._process.pid

    def kill(self) -> None:
        """Kill the process and all its descendants with SIGKILL, at once."""
        assert self._process is not None  # noqa: S101 - started before
        try:
            process = psutil.Process(self._process.pid)
            tree = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            tree = []
        for part in tree:
            # All are stopped first, so that none can react to another one's death.
            _send(part, signal.SIGSTOP)
        for part in tree:
            _send(part, signal.SIGKILL)
        psutil.wait_procs(tree, timeout=10)
        self._process.wait()

    def drain(self) -> int:
        """Send SIGTERM, wait for the process to end, and return its exit code.

        Raises:
            PipelineFailedError: it has not ended within ten minutes.
        """
        assert self._process is not None  # noqa: S101 - started before
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise PipelineFailedError(
                "the pipeline did not end within ten minutes.", self._tail()
            ) from error

    def has_ended(self) -> bool:
        """Return whether the process has ended by itself."""
        assert self._process is not None  # noqa: S101 - started before
        return self._process.poll() is not None

    def wait(self, seconds_max: float) -> int:
        """Wait for the process to end by itself, and return its exit code."""
        assert self._process is not None  # noqa: S101 - started before
        return self._process.wait(timeout=seconds_max)

    def wait_for_watermark(self, watermark_ns: int, *, seconds_max: float) -> None:
        """Wait until the pipeline's low watermark has reached a time.

        Raises:
            PipelineFailedError: the process has ended, or the time is up.
        """
        until = time.monotonic() + seconds_max
        while (self.low_watermark_ns() or 0) < watermark_ns:
            if self.has_ended() or time.monotonic() > until:
                raise self._stuck(watermark_ns)
            time.sleep(0.1)

    def follow_to_watermark(
        self, watermark_ns: int, say: Callable[[str], None], *, idle_s_max: float = 180
    ) -> None:
        """Wait as long as the low watermark or the log moves, and report the position meanwhile.

        Args:
            watermark_ns: the low watermark to be reached.
            say: is called with the pipeline's position every fifteen seconds.
            idle_s_max: seconds without a sign of progress.

        Raises:
            PipelineFailedError: the process has ended, or shows no progress.
        """
        begun = moved = said = time.monotonic()
        before: tuple[int | None, int] = (None, 0)
        while ((sign := self._signs())[0] or 0) < watermark_ns:
            now = time.monotonic()
            if sign != before:
                before, moved = sign, now
            if self.has_ended() or now - moved > idle_s_max:
                raise self._stuck(watermark_ns)
            if now - said >= _SAY_EVERY_S:
                said = now
                say(_where(sign[0], watermark_ns, now - begun))
            time.sleep(0.1)

    def _signs(self) -> tuple[int | None, int]:
        """Return the signs of progress: the low watermark, and the size of the log."""
        return self.low_watermark_ns(), self.log.stat().st_size

    def _stuck(self, watermark_ns: int) -> PipelineFailedError:
        return PipelineFailedError(
            f"the pipeline did not reach the low watermark {format_rfc3339(watermark_ns)}.",
            self._tail(),
        )

    def _tail(self) -> str:
        return f"The end of {self.log}:\n{self.log.read_text(errors='replace')[-2_000:]}"

    def low_watermark_ns(self) -> int | None:
        """Return the low watermark in the metadata store; None before the first epoch."""
        try:
            store = Store.open(self._settings["state"]["url"], migrate=False)
        except StateError:
            return None
        with closing(store):
            pipeline = store.pipeline(self._settings["pipeline"])
            return pipeline.low_watermark_ns if pipeline else None


def _where(low_watermark_ns: int | None, wanted_ns: int, seconds: float) -> str:
    """Return the position of a pipeline that has been waited for so long."""
    if low_watermark_ns is None:
        return f"after {seconds:.0f} s: starting; no epoch is committed yet"
    behind_s = ns_to_seconds(wanted_ns - low_watermark_ns)
    return f"after {seconds:.0f} s: the low watermark has {behind_s:.1f} s to go"


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
