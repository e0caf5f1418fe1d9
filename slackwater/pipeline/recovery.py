"""Recovery from a loss that only an operator can accept: of the checkpoint, or of records.

The rules only; slackwater.pipeline.resume_point asks the checkpoint, the store and Spanner.
"""

import re
from dataclasses import dataclass
from typing import Final

from slackwater.errors import RecoveryError
from slackwater.scheduler.epoch import watermark_for_start
from slackwater.timestamp import format_rfc3339, parse_rfc3339

EARLIEST: Final = "earliest"
LAST: Final = "last"
_RUN: Final = "slackwater run"
_RESUME: Final = "slackwater resume"
# A command in a text for users, without options yet.
_BARE: Final = re.compile(r"(`slackwater (?:run|resume|status))(?! -c | --pipeline )")


@dataclass(frozen=True, slots=True)
class Recovery:
    """The losses that the operator accepts.

    Attributes:
        from_watermark: the checkpoint is lost, or does not agree with the output; go on from this
            low watermark with a new one: "last" for that of the last committed epoch, or a time.
        skip_to: records are lost; go on from here, "earliest" or a time, and leave a gap.
        command: the command line that accepts them, as far as the settings; see recovery_command.
    """

    from_watermark: str | None = None
    skip_to: str | None = None
    command: str = _RUN

    @property
    def accepts_nothing(self) -> bool:
        """Whether the operator accepts no loss."""
        return self.from_watermark is None and self.skip_to is None

    def require_valid(self) -> None:
        """Check the times.

        Raises:
            RecoveryError: one is neither a time nor the word that may stand for it.
        """
        for text, word in ((self.from_watermark, LAST), (self.skip_to, EARLIEST)):
            if text not in (None, word):
                named_watermark_ns(text)


def recovery_command(*, stays: bool, file_option: str, pipeline: str | None) -> str:
    """Return the command by which an operator lets a failed pipeline go on.

    Args:
        stays: its process waits for the operator, with the lease and the port: then `run` beside it
            would stand by.
        file_option: the option that names the settings file, with a space before it.
        pipeline: the pipeline's name, if the file has several; else None.
    """
    return f"{_RESUME if stays else _RUN}{settings_options(file_option, pipeline)}"


def settings_options(file_option: str, pipeline: str | None) -> str:
    """Return the options that name a pipeline's settings; see recovery_command()."""
    return file_option if pipeline is None else f"{file_option} --pipeline {pipeline}"


def other_command(command: str, verb: str) -> str:
    """Return another command line with the settings of one from recovery_command()."""
    program, _, *options = command.split(" ", 2)
    return " ".join([program, verb, *options])


def with_command(hint: str, command: str) -> str:
    """Return a hint with the pipeline's own command line in place of `slackwater run`."""
    return hint.replace(f"`{_RUN} ", f"`{command} ").replace(f"`{_RUN}`", f"`{command}`")


def with_options(text: str, options: str) -> str:
    """Return a text whose commands have the options of the one that prints it."""
    return _BARE.sub(lambda bare: f"{bare[1]}{options}", text)


def start_after_lost_checkpoint_ns(
    pipeline: str, from_watermark: str, *, last_ns: int | None, is_certain: bool = True
) -> int:
    """Return the low watermark from which a pipeline continues with a new checkpoint.

    Args:
        pipeline: its name.
        from_watermark: named by the operator: "last" or a time.
        last_ns: the low watermark of the last committed epoch; None if no part has one.
        is_certain: whether the output confirms it. If it can't tell, or is empty, the operator may
            know of another one.

    Raises:
        RecoveryError: no epoch is known and none is named, or another one is the last.
    """
    start_ns = last_ns if from_watermark == LAST else named_watermark_ns(from_watermark)
    if start_ns is None:
        raise RecoveryError(
            f"neither the metadata store nor the output has an epoch of {pipeline!r}.",
            "Name the low watermark: --from-watermark 2026-01-31T09:00:00.1234565Z",
        )
    if is_certain and last_ns is not None and start_ns != last_ns:
        verb = "write records twice" if start_ns < last_ns else "leave records out"
        raise RecoveryError(
            f"the last epoch of {pipeline!r} ends at {format_rfc3339(last_ns)}; going on"
            f" from {format_rfc3339(start_ns)} would {verb}.",
            f"Use --from-watermark {LAST}",
        )
    return start_ns


def require_gap(start_ns: int, end_ns: int) -> None:
    """Check that records lie between the last epoch and the time to skip to.

    Raises:
        RecoveryError: the time does not lie after the last epoch.
    """
    if end_ns <= start_ns:
        raise RecoveryError(
            f"--skip-to {format_rfc3339(end_ns)} does not lie after the low watermark"
            f" {format_rfc3339(start_ns)}: nothing need be skipped.",
            "Leave out --skip-to",
        )


def named_watermark_ns(text: str) -> int:
    """Return the low watermark that a time on the command line stands for.

    Raises:
        RecoveryError: it is not a time.
    """
    try:
        return watermark_for_start(parse_rfc3339(text))
    except ValueError as error:
        raise RecoveryError(f"{error}.", f"Use {EARLIEST}, {LAST} or an RFC 3339 time") from error
