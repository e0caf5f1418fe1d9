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
|- SchemaRefusedError    user: a schema registry rejects a schema, or a topic's does not fit
|- ClientSettingError    user: a setting of Kafka's client can't be used
|- MessageRefusedError   user: Kafka or Pub/Sub refuses a message, a topic or a right
|- NotPermittedError     tried again, exit code 2: a service misses a right, or credentials
|- ObjectStoreError      user: an object store can't be opened, or refuses
|- BigQueryError         user: BigQuery refuses, or a table there has another shape
|- DatabaseError         user: a database refuses, or a table there is another one's
|  |- PostgresqlError     of PostgreSQL's
|  `- DuckLakeError       of DuckLake's
|- FileSystemError       user: Spark can't reach a path, or not safely
|- TransactionsUnsupportedError  user: a Kafka broker has no transactions
`- PublishError          world: a file system, table or registry failed
"""

from slackwater.own_error import OwnError, UserError


class SinkError(OwnError):
    """The root of the sinks' errors."""


class UnknownFormatError(SinkError, UserError):
    """The sink does not write this format: choose one of those listed."""


class BadRecordError(SinkError, UserError):
    """A value is not of its column's type: set such records aside, or fix the value in Spanner."""


class ColumnNameError(SinkError, UserError):
    """A column has a name that its table needs or can't hold: leave it out, or rename it."""


class TableNameError(SinkError, UserError):
    """Two tables need one place in the output, or a name is too long: leave one out, or rename."""


class ChangelogColumnError(SinkError, UserError):
    """A column's type no longer fits its typed changelog: move the changelog away."""


class TableRecreatedError(SinkError, UserError):
    """A table was dropped and made again: have its mirror cleared, or mirror it again."""


class AsOfTimeError(SinkError, UserError):
    """An output does not go back to a time, or has no low watermark yet: name a later time."""


class PartialRowError(SinkError, UserError):
    """A change lacks the whole row: choose a value capture type that captures it."""


class UnknownChangesError(SinkError, UserError):
    """An update does not tell which columns it changed: choose another value capture type."""


class SchemaRefusedError(SinkError, UserError):
    """A schema registry rejects a schema, or a topic has none that fits: the message says why."""


class ClientSettingError(SinkError, UserError):
    """A setting of Kafka's client can't be used: change it, or the way of delivery."""


class MessageRefusedError(SinkError, UserError):
    """A service for messages refuses one, a topic or a right: the text says which.

    Attributes:
        code: the service's name of the reason, such as MSG_SIZE_TOO_LARGE.
        topic: of the message; None if it is not known, or if no message was refused.
    """

    def __init__(
        self, message: str, hint: str = "", *, code: str = "", topic: str | None = None
    ) -> None:
        super().__init__(message, hint)
        self.code, self.topic = code, topic


class NotPermittedError(SinkError):
    """A service has no credentials of ours, or does not let them publish: grant the right.

    A pipeline tries again: a proxy may have refused, or the credentials may not be there yet.
    """

    needs_user = True


class ObjectStoreError(SinkError, UserError):
    """An output is not as its commits say, or its object store can't be opened or refuses."""


class BigQueryError(SinkError, UserError):
    """BigQuery refuses, or a table there has another shape: the message says what to do."""


class DatabaseError(SinkError, UserError):
    """A database refuses, or a table there is another one's: the message says what to change."""


class PostgresqlError(DatabaseError):
    """The error of a PostgreSQL database."""


class DuckLakeError(DatabaseError):
    """The error of a DuckLake, its catalog or its files."""


class FileSystemError(SinkError, UserError):
    """Spark can't reach a path, or two processes are not safe there: the message says why."""


class TransactionsUnsupportedError(SinkError, UserError):
    """A Kafka broker has no transactions: deliver at least once."""


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
