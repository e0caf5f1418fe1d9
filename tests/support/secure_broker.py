"""A broker with TLS and passwords, and a client's options for it as docs/kafka.md shows them."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slackwater.spark_sink.kafka.client_settings import librdkafka_settings
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from tests.support.kafka_broker import Broker
from tests.support.pages import blocks


class SecureBroker(Broker):
    """The broker.

    Args:
        folder: for its configuration, its log and its data.
        password: of the only user.

    Attributes:
        options: sink.options for it.
        client: the same as settings of librdkafka, without the broker's address.
    """

    def __init__(self, folder: Path, password: str = "secret") -> None:
        certificate, both = _certificate(folder)
        documented = {
            name: value.replace('password="secret"', f'password="{password}"')
            for name, value in _documented_options().items()
        }
        options = documented | {"kafka.ssl.truststore.location": str(certificate)}
        java = {name.removeprefix("kafka."): value for name, value in options.items()}
        self.client = librdkafka_settings(java)
        del self.client["bootstrap.servers"]
        jaas = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required username="
            f'"admin" password="of-admin" user_admin="of-admin" user_ann="{password}";'
        )
        properties = {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            **{f"ssl.{store}.type": "PEM" for store in ("keystore", "truststore")},
            "ssl.keystore.location": str(both),
            "ssl.truststore.location": str(certificate),
        }
        super().__init__(folder, properties, self.client, "SASL_SSL")
        self.options: Mapping[str, str] = options | {"kafka.bootstrap.servers": self.host}


def _documented_options() -> dict[str, str]:
    """Return the options of the page's example with TLS and a password."""
    (example,) = (block for block in blocks("kafka.md", "yaml") if "SASL_SSL" in block)
    sink: dict[str, Any] = yaml.safe_load(example)["sink"]
    return KafkaSettings.model_validate(sink).options


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Make the broker's certificate; return it, and a file that has its key, too."""
    certificate, key, both = (folder / f"{name}.pem" for name in ("certificate", "key", "both"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + certificate.read_text())
    return certificate, both
