"""What a sink refuses or fails at.

SinkError
|- UnknownFormatError    user: the format is none that the sink writes
|- BadRecordError        user: a value is none of its column's type
|- MirrorColumnError     user: a column has got a type that its mirror has not
|- ChangelogColumnError  user: a column has got a type that its changelog has not
|- PartialRowError       user: a change has not the whole row, and the format needs it
|- SchemaRefusedError    user: the schema registry does not take a schema
`- PublishError          world: the file system or the registry did not do what it was asked
"""

from __future__ import annotations


class SinkError(Exception):
    """Root of the sinks' errors: message says what and where, hint what to do."""

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class UnknownFormatError(SinkError):
    """The format is none that the sink writes: choose one of those named."""

    user_error = True


class BadRecordError(SinkError):
    """A value is none of its column's type: set such records aside, or mend their conversion."""

    user_error = True


class MirrorColumnError(SinkError):
    """A column has got a type that its mirror has not: make room for the new one."""

    user_error = True


class ChangelogColumnError(SinkError):
    """A column has got a type that its typed changelog has not: make room for a new one."""

    user_error = True


class PartialRowError(SinkError):
    """A change has not the whole row: choose a value capture type that has."""

    user_error = True


class SchemaRefusedError(SinkError):
    """The schema registry does not take a schema: its compatibility rule, or the user's rights."""

    user_error = True


class PublishError(SinkError):
    """The world did not do what it was asked: the epoch is written again at the next run."""


def conflict(path: str) -> PublishError:
    """Two processes committed to one table at once."""
    return PublishError(
        f"another process committed to {path} at the same time.",
        "Each pipeline needs a table of its own",
    )
