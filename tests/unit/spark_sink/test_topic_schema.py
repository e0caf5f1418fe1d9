"""A topic's schema fits, or the refusal has the commands that let it; a message is of its bytes."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.avro_fields import record_schema
from slackwater.spark_sink.errors import SchemaRefusedError
from slackwater.spark_sink.pubsub.topic_schema import Topic, TopicSchema

TOPIC = Topic("spanner-Orders", "shop")
NAME = "projects/other/schemas/orders"


def schema(*fields: str) -> Any:
    return record_schema("Envelope", dict.fromkeys(fields, "long"), "spanner")


def made(*fields: str, **attributes: Any) -> TopicSchema:
    return TopicSchema(NAME, False, json.dumps(schema(*fields)), **attributes)


def commands(schema_of_topic: TopicSchema | None) -> list[list[str]]:
    """Return the words of each command that a refusal ends with."""
    with pytest.raises(SchemaRefusedError) as refused:
        TOPIC.require_fit(schema_of_topic, [schema("a"), schema("b")])
    words = shlex.split(refused.value.hint[refused.value.hint.index("gcloud") :])
    split = words.index("&&") if "&&" in words else len(words)
    return [words[:split], words[split + 1 :]]


def test_a_schema_that_has_every_field_is_the_topics() -> None:
    assert TOPIC.require_fit(made("b", "a", "c"), [schema("a"), schema("b")]) == made("b", "a", "c")


def test_a_revision_has_the_columns_of_all_messages_that_wait() -> None:
    commit, then = commands(made("c"))
    assert commit[:7] == f"gcloud pubsub schemas commit {NAME} --type=avro --project=shop".split()
    definition = json.loads(commit[7].removeprefix("--definition="))
    assert [field["name"] for field in definition["fields"]] == ["c", "a", "b"]
    assert then == []


def test_a_topic_that_takes_no_later_revision_is_updated_and_keeps_its_encoding() -> None:
    for is_json, encoding in ((True, "json"), (False, "binary")):
        pinned = replace(made("c", is_pinned=True), is_json=is_json)
        text = f"gcloud pubsub topics update spanner-Orders --schema={NAME}"
        text += f" --message-encoding={encoding} --project=shop"
        assert commands(pinned)[1] == text.split()


@pytest.mark.parametrize(
    ("existing", "name"),
    [
        (None, "spanner-Orders"),
        (TopicSchema(NAME, is_json=False, definition='{"type":"string"}'), "spanner-Orders-2"),
        (made("a", "b", is_avro=False), "spanner-Orders-2"),
        (
            replace(made("a", "b", is_avro=False), name="projects/p/schemas/spanner-Orders-9"),
            "spanner-Orders-10",
        ),
    ],
)
def test_another_schema_is_created_where_no_revision_helps(
    existing: TopicSchema | None, name: str
) -> None:
    create, attach = commands(existing)
    assert create[3:5] == ["create", name]
    assert attach[2:6] == ["topics", "update", "spanner-Orders", f"--schema={name}"]


def test_a_message_has_no_header_and_its_union_in_json_has_the_types_name() -> None:
    assert made("a").encode({"a": 1}) == b"\x02\x02"
    assert (
        replace(made("a", "b"), is_json=True).encode({"a": 1}) == b'{"a": {"long": 1}, "b": null}'
    )


def test_a_value_of_another_type_is_no_message() -> None:
    with pytest.raises(ValueError, match="long"):
        made("a").encode({"a": "x"})
