"""The errors of sinks.

SinkError
|- UnknownFormatError    user: the sink does not write this format
|- BadRecordError        user: a value is not of its column's type
|- ColumnNameError       user: a column has a name that its table needs or can't hold
|- TableNameError        user: two tables need one place in the output, or a name is too long
|- ChangelogColumnError  user: a column's type no longer fits its changelog
|- TableRecreatedError   user: a table was dropped and made again, and its mirror has old rows
|- AsOfTimeError         user: an output does not go back to a time
|- PartialRowError       user: a change lacks the whole row, which the format needs
|- UnknownChangesError   user: an update does not tell which columns it changed
|- SchemaRefusedError    user: the schema registry rejects a schema
|- ClientSettingError    user: a setting of Kafka's client can't be used
|- MessageRefusedError   user: a Kafka broker refuses a message, a topic or a right
|- ObjectStoreError      user: an object store can't be opened, or refuses
|- BigQueryError         user: BigQuery refuses, or a table there has another shape
|- FileSystemError       user: Spark can't reach a path, or not safely
|- TransactionsUnsupportedError  user: a Kafka broker has no transactions
`- PublishError          world: a file system, table or registry failed
"""

from __future__ import annotations


class SinkError(Exception):
    """The root of the sinks' errors: message says what happened and where, hint what to do."""

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class UnknownFormatError(SinkError):
    """The sink does not write this format: choose one of those listed."""

    user_error = True


class BadRecordError(SinkError):
    """A value is not of its column's type: set such records aside, or fix the value in Spanner."""

    user_error = True


class ColumnNameError(SinkError):
    """A column has a name that its table needs or can't hold: leave it out, or rename it."""

    user_error = True


class TableNameError(SinkError):
    """Two tables need one place in the output, or a name is too long: leave one out, or rename."""

    user_error = True


class ChangelogColumnError(SinkError):
    """A column's type no longer fits its typed changelog: move the changelog away."""

    user_error = True


class TableRecreatedError(SinkError):
    """A table was dropped and made again: have its mirror cleared, or mirror it again."""

    user_error = True


class AsOfTimeError(SinkError):
    """An output does not go back to a time, or has no low watermark yet: name a later time."""

    user_error = True


class PartialRowError(SinkError):
    """A change lacks the whole row: choose a value capture type that captures it."""

    user_error = True


class UnknownChangesError(SinkError):
    """An update does not tell which columns it changed: choose another value capture type."""

    user_error = True


class SchemaRefusedError(SinkError):
    """The schema registry rejects a schema: by its compatibility rule, or for lack of rights."""

    user_error = True


class ClientSettingError(SinkError):
    """A setting of Kafka's client can't be used: change it, or the way of delivery."""

    user_error = True


class MessageRefusedError(SinkError):
    """A Kafka broker refuses a message, a topic or a right: the message says which.

    Attributes:
        code: Kafka's name of the reason, such as MSG_SIZE_TOO_LARGE.
        topic: of the message; None if it is not known, or if no message was refused.
    """

    user_error = True

    def __init__(
        self, message: str, hint: str = "", *, code: str = "", topic: str | None = None
    ) -> None:
        super().__init__(message, hint)
        self.code, self.topic = code, topic


class ObjectStoreError(SinkError):
    """An output is not as its commits say, or its object store can't be opened or refuses."""

    user_error = True


class BigQueryError(SinkError):
    """BigQuery refuses, or a table there has another shape: the message says what to do."""

    user_error = True


class FileSystemError(SinkError):
    """Spark can't reach a path, or two processes are not safe there: the message says why."""

    user_error = True


class TransactionsUnsupportedError(SinkError):
    """A Kafka broker has no transactions: deliver at least once."""

    user_error = True


class PublishError(SinkError):
    """A file system, table or registry failed: the epoch is written again by the next attempt."""


def missing_files(message: str) -> PublishError:
    """Return the error for files of tasks that are not where the driver looks for them."""
    return PublishError(
        message,
        "Each executor needs the same directory. Or another process has taken the pipeline over;"
        " the epoch is read again",
    )


def commit_conflict(path: str) -> PublishError:
    """Return the error of two processes that committed to one table at the same time."""
    return PublishError(
        f"another process committed to {path} at the same time.",
        "Each pipeline needs a table of its own",
    )
