"""The table of Spanner's answers: the reaction to each gRPC code and message.

A code alone says little, because a proxy, a load balancer or gRPC itself can answer in Spanner's
place: gRPC makes PERMISSION_DENIED of a plain HTTP 403, UNIMPLEMENTED of a 404 and CANCELLED of a
stream that was reset ("HTTP to gRPC Status Code Mapping" and "HTTP2 Transport Mapping" in gRPC's
documentation). So a pipeline is stopped only by a message of Spanner's own about the database, the
stream, a timestamp or the query. Everything else is tried again.

The messages are those of the Cloud Spanner emulator, which takes them from the service. The table
in docs/reliability.md is the same one.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final


class Reaction(Enum):
    """An action of the reader after an answer."""

    REOPEN = "the request is repeated for up to a minute; after that the epoch is tried again"
    RETRY_EPOCH = "the epoch is tried again, with growing delays; `status` shows the reason"
    LOOK_BACK = "the partition is read again from an earlier start, for its child partitions"
    STOP = "permanent: an operator must act"


class Meaning(Enum):
    """The meaning of an answer."""

    START_TOO_OLD = "the records at the start are gone"
    START_IN_FUTURE = "the start lies in the future"
    ENDED_BEFORE_START = "the partition ended before the start"
    OTHER_STREAM = "the partition is of another stream, mostly one dropped and created again"
    OTHER_PLACEMENT = "the partition is of another placement, mostly one dropped and created again"
    NO_STREAM = "the stream does not exist, or no longer"
    NO_DATABASE = "a name is wrong"
    INVALID_QUERY = "the query is invalid"
    READ_TOO_OLD = "a read's time is older than version_retention_period"
    SESSION_LOST = "Spanner has forgotten the session; another one is made"
    NOT_PERMITTED = "a role is missing, or a proxy refuses"
    NOT_TRUSTED = "the server's certificate is not trusted, or it speaks no TLS"
    NOT_AUTHENTICATED = "credentials are missing, or a proxy refuses"
    NOT_SPANNERS = "unknown; perhaps a proxy's answer"
    BROKEN = "the call broke, or the service is busy"


@dataclass(frozen=True)
class Answer:
    """A row of the table.

    Attributes:
        codes: names of gRPC status codes; empty for every code.
        messages: texts of which one is in the message, in any case of letters; an ellipsis stands
            for any text. Empty for every message.
        meaning: of the answer.
        reaction: of the reader.
    """

    codes: tuple[str, ...]
    messages: tuple[str, ...]
    meaning: Meaning
    reaction: Reaction

    def fits(self, code: str, message: str) -> bool:
        """Return True if this row is about a code and a message."""
        if self.codes and code not in self.codes:
            return False
        return not self.messages or self._pattern.search(message) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        texts = (".*".join(map(re.escape, text.split("…"))) for text in self.messages)
        return re.compile("|".join(texts), re.IGNORECASE | re.DOTALL)


_REFUSED: Final = ("OUT_OF_RANGE", "INVALID_ARGUMENT")
_UNKNOWN_NAME: Final = ("NOT_FOUND", "INVALID_ARGUMENT")

# The first row that fits counts.
ANSWERS: Final = (
    Answer(
        _REFUSED,
        ("start_timestamp is too far in the past", "This partition is no longer valid"),
        Meaning.START_TOO_OLD,
        Reaction.STOP,
    ),
    Answer(
        _REFUSED,
        ("start_timestamp is too far in the future",),
        Meaning.START_IN_FUTURE,
        Reaction.STOP,
    ),
    # Under either code, as in Beam's QueryChangeStreamAction: the service answered with
    # INVALID_ARGUMENT before it did with OUT_OF_RANGE.
    Answer(
        _REFUSED,
        ("start_timestamp is invalid",),
        Meaning.ENDED_BEFORE_START,
        Reaction.LOOK_BACK,
    ),
    Answer(_REFUSED, ("partition_token is invalid",), Meaning.OTHER_STREAM, Reaction.STOP),
    Answer(
        _REFUSED,
        ("does not belong to the placement",),
        Meaning.OTHER_PLACEMENT,
        Reaction.RETRY_EPOCH,
    ),
    # In GoogleSQL, in PostgreSQL, and where the stream was dropped while its query was open.
    Answer(
        _UNKNOWN_NAME,
        (
            "Table-valued function not found",
            "function …read_json_… does not exist",
            "function …read_proto_bytes_… does not exist",
            "Change Stream not found",
        ),
        Meaning.NO_STREAM,
        Reaction.STOP,
    ),
    Answer(("NOT_FOUND",), ("Session not found",), Meaning.SESSION_LOST, Reaction.REOPEN),
    Answer(
        ("NOT_FOUND",),
        ("Database not found", "Instance not found"),
        Meaning.NO_DATABASE,
        Reaction.STOP,
    ),
    # Of a query's arguments, and where errors in SQL stand: GoogleSQL's, PostgreSQL's.
    Answer(
        (*_REFUSED, "NOT_FOUND"),
        ("start_timestamp", "end_timestamp", "heartbeat_milliseconds", "[at …:…]", "[ERROR]"),
        Meaning.INVALID_QUERY,
        Reaction.STOP,
    ),
    Answer(
        ("FAILED_PRECONDITION",),
        ("exceeded the maximum timestamp staleness",),
        Meaning.READ_TOO_OLD,
        Reaction.STOP,
    ),
    Answer(("PERMISSION_DENIED",), (), Meaning.NOT_PERMITTED, Reaction.RETRY_EPOCH),
    Answer(("UNAUTHENTICATED",), (), Meaning.NOT_AUTHENTICATED, Reaction.RETRY_EPOCH),
    # gRPC's own, of a token that could not be had.
    Answer(
        ("UNAVAILABLE",),
        ("Getting metadata from plugin failed",),
        Meaning.NOT_AUTHENTICATED,
        Reaction.RETRY_EPOCH,
    ),
    # And of a handshake that would fail again.
    Answer(
        ("UNAVAILABLE",),
        (
            "CERTIFICATE_VERIFY_FAILED",
            "Hostname Verification Check failed",
            "WRONG_VERSION_NUMBER",
        ),
        Meaning.NOT_TRUSTED,
        Reaction.RETRY_EPOCH,
    ),
    # The same request would probably get the same answer within the minute.
    Answer((*_REFUSED, "NOT_FOUND"), (), Meaning.NOT_SPANNERS, Reaction.RETRY_EPOCH),
    # A reset of the stream arrives as CANCELLED, INTERNAL, UNKNOWN or UNAVAILABLE, depending on
    # who resets it and on gRPC's version. To read again is always safe.
    Answer((), (), Meaning.BROKEN, Reaction.REOPEN),
)


def answer_of(code: str, message: str) -> Answer:
    """Return the row for a gRPC status.

    Args:
        code: the status code's name; unknown ones are tried again.
        message: the status message.
    """
    return next(answer for answer in ANSWERS if answer.fits(code, message))
