"""The command line in this process: what a command says and does, without a start of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from tempfile import TemporaryFile
from typing import IO
from unittest.mock import patch

import structlog

from slackwater import cli
from slackwater.log_lines import WORKER_ENVIRONMENT


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
