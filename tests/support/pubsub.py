"""Google's emulator of Pub/Sub, and its subscribers."""

import io
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import fastavro
import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import Encoding, PubsubMessage, Schema, SchemaView

from slackwater.testing.emulator import free_port, wait_until_ready
from slackwater.testing.parent import DIE_WITH_PARENT

PROJECT: Final = "orders-project"
_JARS: Final = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_HOW: Final = (
    "the tests of Pub/Sub need Google's emulator: `gcloud components install pubsub-emulator`, or"
    " the package google-cloud-cli-pubsub-emulator"
)


class PubSubEmulator:
    """An emulator that runs.

    Attributes:
        host: HOST:PORT, without TLS.
        project: of the topics.
    """

    def __init__(self, host: str, project: str) -> None:
        self.host, self.project = host, project
        channel = grpc.insecure_channel(host)
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._schemas = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))

    def create(
        self, *topics: str, is_ordered: bool = True, schema_settings: dict[str, Any] | None = None
    ) -> None:
        """Create topics, each with a subscription of its name.

        Args:
            topics: their names.
            is_ordered: the subscriptions keep the order of each ordering key, for which the
                emulator has a thread.
            schema_settings: of the topics; None if they have no schema.
        """
        for topic in topics:
            path = self._publisher.topic_path(self.project, topic)
            self._publisher.create_topic(request={"name": path, "schema_settings": schema_settings})
            self.subscribe(topic, is_ordered=is_ordered)

    def subscribe(self, topic: str, *, is_ordered: bool = True) -> None:
        """Create a subscription of the topic's name; see create()."""
        self._subscriber.create_subscription(
            request={
                "name": self._subscriber.subscription_path(self.project, topic),
                "topic": self._publisher.topic_path(self.project, topic),
                "enable_message_ordering": is_ordered,
            }
        )

    def create_with_schema(self, topic: str, definition: str, encoding: str) -> None:
        """Create a topic with a schema of its name, and a subscription."""
        path = f"projects/{self.project}"
        schema = Schema(type_=Schema.Type.AVRO, definition=definition)
        made = self._schemas.create_schema(parent=path, schema=schema, schema_id=topic)
        settings = {"schema": made.name, "encoding": getattr(Encoding, encoding)}
        self.create(topic, schema_settings=settings)

    def commit(self, schema: str, definition: str) -> str:
        """Commit a revision of a schema; return its number."""
        name = self._schemas.schema_path(self.project, schema)
        revision = Schema(name=name, type_=Schema.Type.AVRO, definition=definition)
        return str(self._schemas.commit_schema(name=name, schema=revision).revision_id)

    def pin(self, topic: str, revision: str) -> None:
        """Let a topic take no later revision of its schema."""
        path = self._publisher.topic_path(self.project, topic)
        settings = self._publisher.get_topic(topic=path).schema_settings
        settings.last_revision_id = revision
        request = {
            "topic": {"name": path, "schema_settings": settings},
            "update_mask": {"paths": ["schema_settings"]},
        }
        self._publisher.update_topic(request=request)

    def delete_schema(self, schema: str) -> None:
        """Delete a schema, whichever topics have it."""
        self._schemas.delete_schema(name=self._schemas.schema_path(self.project, schema))

    def run_commands(self, commands: str, folder: Path) -> None:
        """Run commands of gcloud's for Pub/Sub, as a user pastes them into a shell."""
        environ = {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB": f"http://{self.host}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(folder),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        }
        shell = ["sh", "-c", commands]
        ended = subprocess.run(
            shell, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        # It exits with 0 if a schema is refused.
        assert ended.returncode == 0, ended.stderr
        assert "Failed" not in ended.stderr, ended.stderr

    def definition(self, message: PubsubMessage) -> Any:
        """Return the schema by which Pub/Sub took a message, as a consumer looks it up."""
        attributes = message.attributes
        revision = "{googclient_schemaname}@{googclient_schemarevisionid}".format_map(attributes)
        request = {"name": revision, "view": SchemaView.FULL}
        return json.loads(self._schemas.get_schema(request=request).definition)

    def decoded(self, message: PubsubMessage) -> Any:
        """Return the value of a message in Avro, as a consumer reads it."""
        schema = fastavro.parse_schema(self.definition(message))
        if message.attributes["googclient_schemaencoding"] == "JSON":
            return next(iter(fastavro.json_reader(io.StringIO(message.data.decode()), schema)))
        data = io.BytesIO(message.data)
        value = fastavro.schemaless_reader(data, schema, None)
        assert not data.read(), "Pub/Sub refuses what comes after a message"
        return value

    def pull(self, topic: str) -> list[PubsubMessage]:
        """Return the messages that a topic's subscription has, in the order of their delivery."""
        path = self._subscriber.subscription_path(self.project, topic)
        messages: list[PubsubMessage] = []
        while True:
            asked = {"subscription": path, "max_messages": 1_000, "return_immediately": True}
            received = self._subscriber.pull(request=asked).received_messages
            if not received:
                return messages
            messages += [each.message for each in received]
            acknowledged = [each.ack_id for each in received]
            self._subscriber.acknowledge(subscription=path, ack_ids=acknowledged)


def _jar() -> Path:
    roots = [Path("/usr/lib/google-cloud-sdk")]
    if gcloud := shutil.which("gcloud"):
        roots.append(Path(gcloud).resolve().parents[1])
    for root in roots:
        if jars := sorted(root.glob(_JARS)):
            return jars[-1]
    raise AssertionError(_HOW)


@contextmanager
def running_pubsub(project: str = PROJECT) -> Iterator[PubSubEmulator]:
    """Run an emulator while the context is open, for the topics of a project."""
    host = f"127.0.0.1:{free_port()}"
    address, _, port = host.partition(":")
    process = subprocess.Popen(
        ["java", "-jar", str(_jar()), f"--host={address}", f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=DIE_WITH_PARENT,
    )
    try:
        wait_until_ready(host, process)
        yield PubSubEmulator(host, project)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def pubsub() -> Iterator[PubSubEmulator]:
    """An emulator for a module's tests."""
    with running_pubsub() as emulator, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", emulator.host)
        yield emulator
