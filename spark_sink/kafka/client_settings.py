"""The settings of Kafka's Java client under the names of librdkafka, which sends transactions.

Users know Kafka's settings by the names of its documentation, and Spark's Kafka sink takes those.
Names that are the same in both, or that only librdkafka has, stay as they are.
"""

import re
from collections.abc import Mapping
from typing import Final

from slackwater.spark_sink.errors import ClientSettingError

_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
# Settings of Java's own machinery, which do not change the messages.
_LEFT_OUT: Final = frozenset(
    {
        "key.serializer",
        "max.block.ms",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "value.serializer",
    }
)
_OURS: Final = ("transactional.id", "group.id", "partitioner.class", "enable.idempotence")
_JAAS: Final = re.compile(r"""\b(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;]+)""")
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def librdkafka_settings(java_settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of librdkafka.

    Args:
        java_settings: those of the Java client, without the prefix of Spark's options.

    Raises:
        ClientSettingError: one of them can't be expressed.
    """
    settings: dict[str, str] = {}
    for name, value in java_settings.items():
        if name in _OURS:
            raise ClientSettingError(
                f"sink.options: kafka.{name} can't be set with exactly-once delivery.",
                "Leave it out, or set sink.delivery: at_least_once",
            )
        if name == "sasl.jaas.config":
            settings |= _credentials(value, java_settings.get("sasl.mechanism", "GSSAPI"))
        elif name == "buffer.memory":
            settings["queue.buffering.max.kbytes"] = str(max(1, int(value) // 1024))
        elif name == "ssl.endpoint.identification.algorithm":
            settings[name] = value or "none"
        elif not name.startswith(("ssl.truststore.", "ssl.keystore.")) and name not in _LEFT_OUT:
            settings[_RENAMED.get(name, name)] = value
    return settings | _trusted(java_settings) | _own_certificate(java_settings)


def _credentials(jaas: str, mechanism: str) -> dict[str, str]:
    """Return the user name and password of a JAAS configuration."""
    values = {name: _unquoted(value) for name, value in _JAAS.findall(jaas)}
    if mechanism not in _WITH_PASSWORD or values.keys() != {"username", "password"}:
        raise ClientSettingError(
            f"sink.options: kafka.sasl.jaas.config of mechanism {mechanism} can't be read.",
            f"With {', '.join(_WITH_PASSWORD)} it names username and password. For another"
            " mechanism give librdkafka's settings, or set sink.delivery: at_least_once",
        )
    return {"sasl.username": values["username"], "sasl.password": values["password"]}


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return re.sub(r"\\(.)", r"\1", value[1:-1])


def _trusted(java_settings: Mapping[str, str]) -> dict[str, str]:
    """Return which certificates are trusted."""
    if certificates := java_settings.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": certificates}
    location = java_settings.get("ssl.truststore.location")
    if location is None:
        return {}
    _require_type(java_settings, "truststore", ("PEM",))
    return {"ssl.ca.location": location}


def _own_certificate(java_settings: Mapping[str, str]) -> dict[str, str]:
    """Return the client's certificate and key."""
    password = java_settings.get("ssl.key.password")
    with_password = {} if password is None else {"ssl.key.password": password}
    if chain := java_settings.get("ssl.keystore.certificate.chain"):
        key = java_settings.get("ssl.keystore.key", "")
        return {"ssl.certificate.pem": chain, "ssl.key.pem": key, **with_password}
    location = java_settings.get("ssl.keystore.location")
    if location is None:
        return {}
    if _require_type(java_settings, "keystore", ("PEM", "PKCS12")) == "PEM":
        # One file has both.
        return {"ssl.certificate.location": location, "ssl.key.location": location, **with_password}
    return {
        "ssl.keystore.location": location,
        "ssl.keystore.password": java_settings.get("ssl.keystore.password", ""),
    }


def _require_type(java_settings: Mapping[str, str], store: str, types: tuple[str, ...]) -> str:
    kind = java_settings.get(f"ssl.{store}.type", "JKS")
    if kind not in types:
        raise ClientSettingError(
            f"sink.options: a {store} of type {kind} can't be read with exactly-once delivery.",
            f"Set kafka.ssl.{store}.type to {' or '.join(types)}, and name such a file in"
            f" kafka.ssl.{store}.location; keytool converts one. Or set sink.delivery:"
            " at_least_once",
        )
    return kind
