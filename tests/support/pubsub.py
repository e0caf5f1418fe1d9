"""Google's emulator of Pub/Sub, and its subscribers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import PubsubMessage

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

    def create(self, *topics: str, is_ordered: bool = True) -> None:
        """Create topics, each with a subscription of its name.

        Args:
            topics: their names.
            is_ordered: the subscriptions keep the order of each ordering key, for which the
                emulator has a thread.
        """
        for topic in topics:
            path = self._publisher.topic_path(self.project, topic)
            self._publisher.create_topic(name=path)
            self._subscriber.create_subscription(
                request={
                    "name": self._subscriber.subscription_path(self.project, topic),
                    "topic": path,
                    "enable_message_ordering": is_ordered,
                }
            )

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
