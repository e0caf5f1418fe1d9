"""The command line: in this process, without a start of its own, or in a process of its own."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final
from unittest.mock import patch

import structlog

from slackwater import cli
from slackwater.log_lines import WORKER_ENVIRONMENT

PROGRAM: Final = (sys.executable, "-m", "slackwater.cli")


def slackwater(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the program does, up to the code that it would exit with."""
    with (
        # Real files: some commands ask what their output is.
        TemporaryFile("w+") as out,
        TemporaryFile("w+") as err,
        _logs_as_before(),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", ["slackwater", *arguments]),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def in_own_process(
    config: Path, environ: Mapping[str, str], *arguments: str, seconds_max: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run a command whose JVM has the environment and fetches the packages of the settings.

    Args:
        config: the settings file.
        environ: variables, beside those of this process.
        arguments: the command's name, and what follows the settings file.
        seconds_max: how long it may take.
    """
    return subprocess.run(
        [*PROGRAM, arguments[0], "-c", str(config), *arguments[1:]],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


def rounds_of_verify(config: Path, number: int) -> list[dict[str, Any]]:
    """Return the first rounds of `verify --continuous` over a table each, and stop it."""
    options = ("--continuous", "--every", "1s", "--json")
    command = [*PROGRAM, "verify", "-c", str(config), *options]
    rounds: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while len(rounds) < number:
                found = json.loads(process.stdout.readline())
                rounds += [found] if found["is_round"] else []
            process.terminate()
            process.stdout.read()
            assert process.wait(60) == 0
        finally:
            process.kill()
    return rounds


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the standard output of a command that has to have succeeded."""
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-5_000:]
    return done.stdout


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def _logs_as_before() -> Iterator[None]:
    """Put back what a command sets for the logs of its process."""
    root, ours = logging.getLogger(), logging.getLogger("slackwater")
    py4j, configured = logging.getLogger("py4j"), structlog.get_config()
    handlers, levels = root.handlers, [logger.level for logger in (root, ours, py4j)]
    workers = dict(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        root.handlers = handlers
        for logger, level in zip((root, ours, py4j), levels, strict=True):
            logger.setLevel(level)
        structlog.configure(**configured)
        WORKER_ENVIRONMENT.clear()
        WORKER_ENVIRONMENT.update(workers)
