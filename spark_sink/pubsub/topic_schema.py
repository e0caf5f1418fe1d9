"""The schema of a topic, and the commands by which a topic gets one that fits its messages."""

import io
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro

from slackwater.spark_sink.avro.encoding import avro_bytes
from slackwater.spark_sink.avro.revisions import fit_of
from slackwater.spark_sink.envelopes.avro_fields import Schema
from slackwater.spark_sink.errors import SchemaRefusedError


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema of which a topic takes messages: the last revision of those that it takes.

    Attributes:
        name: projects/PROJECT/schemas/SCHEMA.
        is_json: messages are in Avro's JSON encoding, not in the binary one.
        definition: the schema as JSON.
        is_avro: it is not of protocol buffers.
        is_pinned: the topic takes no revision that comes later.
    """

    name: str
    is_json: bool
    definition: str
    is_avro: bool = True
    is_pinned: bool = False

    def encode(self, value: Any) -> bytes:
        """Return the data of a message.

        Raises:
            ValueError: the value is not of the schema.
        """
        schema = _parsed(self.definition)
        if self.is_json:
            text = io.StringIO()
            fastavro.json_writer(text, schema, [value])
            return text.getvalue().encode()
        return avro_bytes(schema, value)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by its name and project, with the commands for its schema."""

    name: str
    project: str

    def create(self, definition: Schema, *, has_topic: bool, instead_of: str = "") -> str:
        """Return the commands that make a schema, and the topic with it.

        Args:
            definition: the schema's.
            has_topic: there is the topic.
            instead_of: the name of the schema that the topic has.
        """
        numbered = re.fullmatch(rf".*/{re.escape(self.name)}-(\d+)", instead_of)
        number = int(numbered[1]) + 1 if numbered else 2
        schema = f"{self.name}-{number}" if instead_of else self.name
        made = self._gcloud(
            f"schemas create {schema} --type=avro", f"--definition={_text(definition)}"
        )
        verb = "update" if has_topic else "create"
        return f"{made} && {self._attach(verb, schema, is_json=False)}"

    def commit(self, schema: TopicSchema, definition: str) -> str:
        """Return the commands that make a revision of a schema, and let the topic take it."""
        made = self._gcloud(
            f"schemas commit {schema.name} --type=avro", f"--definition={shlex.quote(definition)}"
        )
        if not schema.is_pinned:
            return made
        return f"{made} && {self._attach('update', schema.name, is_json=schema.is_json)}"

    def detach(self) -> str:
        """Return the command that takes the schema from the topic."""
        return self._gcloud(f"topics update {self.name} --clear-schema-settings")

    def require_fit(self, schema: TopicSchema | None, needed: Iterable[Schema]) -> TopicSchema:
        """Return the topic's schema if messages can be written by it.

        Args:
            schema: the topic's; None if it has none.
            needed: the schemas of which the messages are.

        Raises:
            SchemaRefusedError: they can't; the hint has the command that lets them.
        """
        needed = list(needed)
        if schema is None:
            raise SchemaRefusedError(
                f"Pub/Sub topic {self.name} has no schema, which format avro needs.",
                f"Create it: {self.create(needed[0], has_topic=True)}",
            )
        where = f"Pub/Sub topic {self.name}: its schema {schema.name}"
        create = self.create(needed[0], has_topic=True, instead_of=schema.name)
        another = f"Create another: {create}"
        if not schema.is_avro:
            raise SchemaRefusedError(f"{where} is of protocol buffers, not of Avro.", another)
        fit = fit_of(schema.definition, needed)
        if fit.conflicts:
            raise SchemaRefusedError(
                f"{where} does not fit the messages: {'; '.join(fit.conflicts)}.",
                another,
            )
        if fit.lacking:
            raise SchemaRefusedError(
                f"{where} lacks {', '.join(fit.lacking)}.",
                f"Commit a revision: {self.commit(schema, fit.definition)}",
            )
        return schema

    def _attach(self, verb: str, schema: str, *, is_json: bool) -> str:
        encoding = "json" if is_json else "binary"
        return self._gcloud(
            f"topics {verb} {self.name} --schema={schema} --message-encoding={encoding}"
        )

    def _gcloud(self, command: str, end: str = "") -> str:
        text = f"gcloud pubsub {command} --project={self.project}"
        return f"{text} {end}" if end else text


def _text(schema: Schema) -> str:
    return shlex.quote(json.dumps(schema, separators=(",", ":")))


@lru_cache(maxsize=1_000)
def _parsed(definition: str) -> Any:
    return fastavro.parse_schema(json.loads(definition))
