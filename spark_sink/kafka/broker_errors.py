"""The meaning of errors of Kafka's brokers and clients for a pipeline."""

from typing import Final

from slackwater.spark_sink.errors import (
    MessageRefusedError,
    PublishError,
    SinkError,
    TransactionsUnsupportedError,
)

# A pipeline that is run until it has caught up ends after some failures; any other tries again.
SENT_AGAIN: Final = "The epoch is sent again, now or when the pipeline is next run"
# By Kafka's names, without an underscore before those that librdkafka has itself.
_HINTS: Final = {
    "MSG_SIZE_TOO_LARGE": (
        "Raise max.message.bytes of the topic and kafka.max.request.size in sink.options"
    ),
    "INVALID_MSG_SIZE": "Raise max.message.bytes of the topic",
    "UNKNOWN_TOPIC_OR_PART": "Create it, or let the broker create topics",
    "UNKNOWN_TOPIC": "Create it, or let the broker create topics",
    "UNKNOWN_PARTITION": "Create the topic again, or let the broker create topics",
    "TOPIC_EXCEPTION": "Its name is not valid; change sink.topic",
    "POLICY_VIOLATION": "The broker's policy forbids it",
    "INVALID_RECORD": "A compacted topic takes no messages without a key",
    "TOPIC_AUTHORIZATION_FAILED": "Let the pipeline's user describe and write it",
}
_RIGHTS: Final = {
    "GROUP_AUTHORIZATION_FAILED": "Let the pipeline's user read its consumer group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "Let the pipeline's user describe and write its transactional ids"
    ),
    "CLUSTER_AUTHORIZATION_FAILED": "Let the pipeline's user create topics, or create them",
    "SASL_AUTHENTICATION_FAILED": "Check the user and password in sink.options",
    "AUTHENTICATION": "Check the user and password in sink.options",
    "SSL": "Check the certificates in sink.options",
}
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE"})
_FENCED: Final = frozenset(
    {"FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "SPLIT_CHANGED", "STATE"}
)
_MISSING: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"})
_UNSUPPORTED: Final = frozenset({"UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"})


def is_missing(code: str) -> bool:
    """Return whether an error says that a topic does not exist."""
    return code.lstrip("_") in _MISSING


def is_of_message(error: MessageRefusedError) -> bool:
    """Return whether the broker refuses some messages, and would take the others."""
    return error.code in _HINTS


def is_too_large(error: MessageRefusedError) -> bool:
    """Return whether messages are refused because they are too large."""
    return error.code in _TOO_LARGE


def typed_error(code: str, reason: str, topic: str | None = None) -> SinkError:
    """Return the error of the project that stands for one of Kafka's.

    Args:
        code: Kafka's name of it.
        reason: its text.
        topic: of the message that was refused, if it was one.
    """
    name = code.lstrip("_")
    where = f"Kafka topic {topic}: " if topic else "Kafka: "
    if name in _HINTS and (topic or name in _TOO_LARGE):
        return MessageRefusedError(
            f"{where}a message was refused: {reason} ({name}).",
            f"{_HINTS[name]}; or set sink.bad_records to dead_letter"
            " to have the records of such messages set aside",
            code=name,
            topic=topic,
        )
    if name in _UNSUPPORTED:
        return TransactionsUnsupportedError(
            f"{where}the broker has no transactions: {reason} ({name}).",
            "Set sink.delivery: at_least_once",
        )
    if name in _RIGHTS:
        return MessageRefusedError(f"{where}{reason} ({name}).", _RIGHTS[name])
    if name in _FENCED:
        return PublishError(
            f"{where}another process sends for this pipeline ({name}: {reason}).",
            f"Nothing was sent twice. {SENT_AGAIN}",
        )
    return PublishError(f"{where}{reason} ({name}).", _HINTS.get(name, SENT_AGAIN))
