"""The check that a broker answers, for `slackwater check`."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from slackwater.spark_sink.errors import MessageRefusedError, PublishError
from slackwater.spark_sink.kafka.broker_errors import typed_error
from slackwater.spark_sink.kafka.transaction import connection_settings

_ANSWER_S_MAX: Final = 5
_HINT: Final = "Check kafka.bootstrap.servers in sink.options, and whether the broker runs"


def require_broker(settings: Mapping[str, str]) -> None:
    """Ask a broker for the cluster's topics.

    Args:
        settings: librdkafka's.

    Raises:
        SinkError: no broker answers, or it refuses.
    """
    reasons: list[KafkaError] = []
    client: dict[str, Any] = {"log_level": "0", **connection_settings(settings)}
    client["error_cb"] = reasons.append
    admin = AdminClient(client)
    try:
        admin.list_topics(timeout=_ANSWER_S_MAX)
    except KafkaException as error:
        admin.poll(0)
        # The call itself only says that it has timed out.
        reason = next((r for r in reasons if r.name() != "_ALL_BROKERS_DOWN"), error.args[0])
        cause = typed_error(reason.name(), reason.str())
        raise PublishError(
            f"no Kafka broker answers at {settings.get('bootstrap.servers')}: {cause.message}",
            cause.hint if isinstance(cause, MessageRefusedError) else _HINT,
        ) from error
