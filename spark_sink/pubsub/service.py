"""Pub/Sub's address, the calls to it, and the meaning of its refusals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import grpc
from google.auth.exceptions import GoogleAuthError
from google.iam.v1.iam_policy_pb2 import (  # type: ignore[import-untyped]
    TestIamPermissionsRequest,
    TestIamPermissionsResponse,
)
from google.pubsub_v1 import types
from google.pubsub_v1.types import PublishRequest, PublishResponse, PubsubMessage, SchemaSettings
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from slackwater.endpoint import Endpoint
from slackwater.google_credentials import call_credentials, google_credentials
from slackwater.spark_sink.errors import (
    MessageRefusedError,
    NotPermittedError,
    PublishError,
    SchemaRefusedError,
    SinkError,
)
from slackwater.spark_sink.pubsub.topic_schema import Topic, TopicSchema

_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)
_PUBLISHER: Final = "/google.pubsub.v1.Publisher/"
_GET_SCHEMA: Final = "/google.pubsub.v1.SchemaService/GetSchema"
_PUBLISHER_ROLE: Final = "roles/pubsub.publisher"
# Of topics and their schemas, at which publishers may not look.
_VIEWER: Final = "roles/pubsub.viewer"
_REQUEST_BYTES_MAX: Final = 10_000_000
# Of a quota that is used up, most of all: the whole epoch would be sent again.
_PATIENCE_S: Final = 300.0
_CALL_S_MAX: Final = 30.0
# As Google's publisher does.
_RETRIED: Final = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
)
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
_PROVIDE_CREDENTIALS: Final = (
    "Provide Application Default Credentials: gcloud auth application-default login, or"
    " GOOGLE_APPLICATION_CREDENTIALS. For an emulator set PUBSUB_EMULATOR_HOST=HOST:PORT"
)
# Those of Google's own publisher.
_CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.max_metadata_size", 4 * 1024 * 1024),
)
_ASIDE: Final = (
    "; or set sink.bad_records to dead_letter to have the records of such messages set aside"
)


@dataclass(frozen=True, slots=True)
class Service:
    """Pub/Sub in one project.

    Attributes:
        project: that has the topics.
        endpoint: its address and credentials.
        compresses: requests are sent with gzip.
    """

    project: str
    endpoint: Endpoint
    compresses: bool = False

    def path(self, topic: str) -> str:
        """Return a topic's resource name."""
        return f"projects/{self.project}/topics/{topic}"

    def publish(self, topic: str, messages: Sequence[PubsubMessage]) -> None:
        """Send messages in one request, again if there is no answer.

        Args:
            topic: its name.
            messages: protocol buffers; at most 1,000 with at most 10 MB.

        Raises:
            MessageRefusedError: the service refuses a message, or has no such topic.
            NotPermittedError: a right or credentials are missing.
            PublishError: it does not answer.
        """
        request = PublishRequest.pb(PublishRequest(topic=self.path(topic)))
        request.messages.extend(messages)
        if request.ByteSize() > _REQUEST_BYTES_MAX:
            raise MessageRefusedError(
                f"Pub/Sub topic {topic}: a message has more than 10 MB.",
                f"Leave columns out with filter.exclude_columns{_ASIDE}",
                code=grpc.StatusCode.INVALID_ARGUMENT.name,
                topic=topic,
            )
        self._call("Publish", request, PublishResponse, topic)

    def require_topic(self, topic: str) -> None:
        """Ask whether there is a topic that may be published to, and that takes any JSON.

        Raises:
            SchemaRefusedError: it has a schema, which plain JSON does not match.
            MessageRefusedError, PublishError: as publish().
        """
        try:
            schema = self.topic_schema(topic)
            # JSON may be that of protocol buffers.
            if schema is not None and (schema.is_avro or not schema.is_json):
                raise SchemaRefusedError(
                    f"Pub/Sub topic {topic} has the schema {schema.name}, and format json makes"
                    " messages without one.",
                    "Set sink.format to avro, choose a topic without a schema, or take the schema"
                    f" from this one: {Topic(topic, self.project).detach()}",
                )
        except NotPermittedError:
            # Who may publish may not look at a topic, but may ask for his own rights.
            right = "pubsub.topics.publish"
            asked = TestIamPermissionsRequest(resource=self.path(topic), permissions=[right])
            method = "/google.iam.v1.IAMPolicy/TestIamPermissions"
            answer = self._call(method, asked, TestIamPermissionsResponse, topic)
            if right not in answer.permissions:
                raise

    def topic_schema(self, topic: str) -> TopicSchema | None:
        """Return the schema by which a topic takes messages; None if it takes any.

        Raises:
            SchemaRefusedError: the schema was deleted.
            NotPermittedError: the right to look at topics or schemas is missing.
            MessageRefusedError, PublishError: as publish().
        """
        asked = types.GetTopicRequest.pb(types.GetTopicRequest(topic=self.path(topic)))
        settings = self._call("GetTopic", asked, types.Topic, topic, _VIEWER).schema_settings
        return self._schema_of(topic, settings) if settings.schema else None

    def _schema_of(self, topic: str, settings: SchemaSettings) -> TopicSchema:
        revision = settings.last_revision_id
        name = f"{settings.schema}@{revision}" if revision else settings.schema
        asked = types.GetSchemaRequest(name=name, view=types.SchemaView.FULL)
        request = types.GetSchemaRequest.pb(asked)
        try:
            schema = self._call(_GET_SCHEMA, request, types.Schema, topic, _VIEWER)
        except MessageRefusedError as error:
            # The topic then has a name in its place that no schema can have.
            raise SchemaRefusedError(
                f"Pub/Sub topic {topic}: its schema {name} was deleted.",
                f"Let it have another, or none: {Topic(topic, self.project).detach()}",
            ) from error
        return TopicSchema(
            settings.schema,
            settings.encoding == types.Encoding.JSON,
            schema.definition,
            schema.type_ == types.Schema.Type.AVRO,
            bool(revision),
        )

    def _call(
        self, method: str, request: Any, answer: Any, topic: str, role: str = _PUBLISHER_ROLE
    ) -> Any:
        """Return the answer of a call; its type is a protocol buffer's, or a wrapper's.

        Args:
            method: its name, of the publisher's service unless it begins with a slash.
            request: a protocol buffer.
            answer: the type of the answer.
            topic: that the call is about.
            role: that has the right to it.
        """
        kind = type(answer.pb(answer())) if hasattr(answer, "pb") else answer
        name = method if method.startswith("/") else f"{_PUBLISHER}{method}"
        try:
            stub = _channel(self).unary_unary(
                name,
                request_serializer=type(request).SerializeToString,
                response_deserializer=kind.FromString,
            )
            return Retrying(
                retry=retry_if_exception(_is_retried),
                wait=wait_random_exponential(multiplier=0.1, max=5),
                stop=stop_after_delay(_PATIENCE_S),
                reraise=True,
            )(stub, request, timeout=_CALL_S_MAX)
        except (grpc.RpcError, GoogleAuthError) as error:
            raise self._typed(error, topic, role) from error

    def _typed(self, error: Any, topic: str, role: str) -> SinkError:
        if isinstance(error, GoogleAuthError):
            return NotPermittedError(f"Pub/Sub: {error}.", _PROVIDE_CREDENTIALS)
        code = error.code()
        said = f"{error.details()} ({code.name})."
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return NotPermittedError(f"Pub/Sub: {said}", _PROVIDE_CREDENTIALS)
        if code is grpc.StatusCode.PERMISSION_DENIED:
            # A schema has no topic's rights.
            where = f"project {self.project}" if role == _VIEWER else self.path(topic)
            return NotPermittedError(
                f"Pub/Sub topic {topic}: {said}",
                f"Grant {role} on {where} to the pipeline's account",
            )
        # A proxy may have answered in Pub/Sub's place with any other code.
        if code not in _REFUSALS:
            return PublishError(
                f"Pub/Sub at {self.endpoint.target}: {said}",
                "Check the network and the service. The epoch is sent again, now or when the"
                " pipeline is next run",
            )
        if code is grpc.StatusCode.NOT_FOUND:
            command = f"gcloud pubsub topics create {topic} --project {self.project}"
            hint = f"Create it: {command}{_ASIDE}"
        else:
            hint = (
                "If the topic has a schema, set sink.format to avro: `slackwater check` says what"
                f" the schema lacks. Otherwise change sink.topic or the record{_ASIDE}"
            )
        return MessageRefusedError(
            f"Pub/Sub topic {topic}: {said}", hint, code=code.name, topic=topic
        )


def is_of_messages(error: MessageRefusedError) -> bool:
    """Return whether some messages of a request are refused, and others may be taken."""
    return error.code == "INVALID_ARGUMENT"


def is_of_topic(error: MessageRefusedError) -> bool:
    """Return whether there is no such topic."""
    return error.code == "NOT_FOUND"


def _is_retried(error: BaseException) -> bool:
    return isinstance(error, grpc.RpcError) and error.code() in _RETRIED


# A worker keeps it for its next tasks.
@lru_cache(maxsize=4)
def _channel(service: Service) -> grpc.Channel:
    endpoint = service.endpoint
    compression = grpc.Compression.Gzip if service.compresses else None
    if endpoint.plaintext:
        return grpc.insecure_channel(
            endpoint.target, options=_CHANNEL_OPTIONS, compression=compression
        )
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(),
        call_credentials(google_credentials(endpoint, _SCOPES)),
    )
    return grpc.secure_channel(
        endpoint.target, credentials, options=_CHANNEL_OPTIONS, compression=compression
    )
