"""The sink kafka against a real broker, epoch by epoch, without a pipeline around it."""

import itertools
import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.errors import (
    MessageRefusedError,
    PartialRowError,
    PublishError,
    TableNameError,
)
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from slackwater.spark_sink.sql.table_shape import TableShape
from slackwater.spark_sink.table_names import plain_name
from slackwater.timestamp import datetime_to_ns
from tests.proofs.kafka_foreign import end_offsets
from tests.support.epoch_rows import frame, record
from tests.support.hostile_names import EVERY_MARK
from tests.support.kafka_broker import PARTITIONS, read_topics
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_messages import decoder
from tests.support.schema_registry import running_registry

# With the start of Spark and of the broker, which a busy machine takes minutes for.
pytestmark = pytest.mark.timeout(300)
AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
COLUMNS = {"Id": "INT64", "Note": "STRING"}


def test_executors_get_the_jars_of_packages_beside_the_users(kafka_session: SparkSession) -> None:
    jars = kafka_session.sparkContext.getConf().get("spark.jars") or ""
    names = [Path(jar).name for jar in jars.split(",")]
    assert any(name.startswith("spark-token-provider-kafka") for name in names), "the user's"
    assert any("spark-sql-kafka-0-10" in name for name in names), "the package's"


class Output:
    """The output of one pipeline; each sink() is the sink of another process of it."""

    def __init__(self, session: SparkSession, host: str, folder: Path) -> None:
        self.session, self._host, self._folder = session, host, folder

    @property
    def pipeline(self) -> str:
        return self._folder.name

    def sink(self, **settings: Any) -> MessageSink:
        options = {"kafka.bootstrap.servers": self._host, **settings.pop("options", {})}
        values = {"checkpoint": str(self._folder / "checkpoint"), "options": options, **settings}
        origin = Origin(self.pipeline, "p", "i", "d", "Everything")
        return KafkaSettings.model_validate(values).make_sink(origin, RecordFilter())

    def limited_sink(self, base: str, limit: int) -> MessageSink:
        """Return a sink that sets records aside whose messages have more bytes."""
        return self.sink(
            topic=f"{base}.{{table}}",
            delivery="at_least_once",
            bad_records="dead_letter",
            options={"kafka.max.request.size": str(limit)},
        )

    def dead_letters(self) -> list[dict[str, Any]]:
        files = self._folder.glob("checkpoint-staging/_dead_letters/*/*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def write(
        self, sink: MessageSink, epoch_id: int, *records: Any, end: int | None = None
    ) -> None:
        """Write an epoch that ends so many seconds after AT, by default epoch_id."""
        changes = frame(self.session, records)
        summary = sink.stage(changes, epoch_id)
        sink.publish(self.session, epoch_id, summary, AT + timedelta(seconds=end or epoch_id))


@pytest.fixture
def output(kafka_session: SparkSession, kafka_broker: str, tmp_path: Path) -> Output:
    return Output(kafka_session, kafka_broker, tmp_path)


def insert(
    key: int, *, at: float, table: str = "Orders", note: str = "", capture: str = "NEW_ROW"
) -> Any:
    """Return the record of an insert, so many seconds after AT."""
    return record(
        "INSERT",
        [({"Id": str(key)}, {"Note": note}, {})],
        COLUMNS,
        at=round(at * 1_000_000),
        table=table,
        capture=capture,
    )


DELIVERIES = pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])


@DELIVERIES
def test_only_topics_that_were_written_to_get_resolved_messages(
    output: Output, kafka_broker: str, delivery: str
) -> None:
    base = f"mine-{delivery}"
    foreign = [f"{base}.otherdb.Users", f"{base}.", f"{base}.Orders.dlq"]
    admin = AdminClient({"bootstrap.servers": kafka_broker})
    for created in admin.create_topics(
        [NewTopic(name, PARTITIONS, 1) for name in foreign]
    ).values():
        created.result()
    settings = {"topic": f"{base}.{{table}}", "resolved": "0s", "delivery": delivery}
    sink = output.sink(**settings)
    output.write(sink, 1, insert(1, at=0.5, table="Orders"))
    output.write(sink, 2, insert(2, at=1.5, table="Users"))
    # Another process knows what this one wrote to.
    for epoch_id in range(3, 6):
        output.write(output.sink(**settings), epoch_id)
    ends = {place: end for place, end in end_offsets(kafka_broker).items() if place[0] in foreign}
    assert ends == dict.fromkeys(itertools.product(foreign, range(PARTITIONS)), 0)
    for topic, epochs in [(f"{base}.Orders", 5), (f"{base}.Users", 4)]:
        read = read_topics(kafka_broker, topic)
        assert {number for name, number in read if name == topic} == set(range(PARTITIONS))
        for number in range(PARTITIONS):
            values = [json.loads(message.value() or b"") for message in read[topic, number]]
            assert sum("resolved" in value for value in values) == epochs


@DELIVERIES
def test_tables_of_any_name_have_topics_of_their_own(
    output: Output, kafka_broker: str, delivery: str
) -> None:
    base = f"any.{delivery.replace('_', '-')}"
    sink = output.sink(topic=f"{base}.{{table}}", delivery=delivery)
    tables = [EVERY_MARK, "a-b", "a b", "sales.Orders"]
    output.write(sink, 1, *(insert(1, at=0.5, table=table, note=table) for table in tables))
    messages = [m for topic in read_topics(kafka_broker, base).values() for m in topic]
    notes = {m.topic(): json.loads(m.value() or b"")["after"]["Note"] for m in messages}
    assert notes == {f"{base}.{plain_name(table)}": table for table in tables}


def test_a_table_for_which_a_broker_makes_no_topic_is_named(output: Output) -> None:
    settings: dict[str, Any] = {"topic": "twins.{table}", "delivery": "exactly_once"}
    sink = output.sink(**settings)
    output.write(sink, 1, insert(1, at=0.5, table="sales.Orders"))
    # By this process, and by one that learns from the files what was written before it.
    for sender in (sink, output.sink(**settings)):
        with pytest.raises(TableNameError, match=r"'sales_Orders'.*'sales\.Orders'"):
            output.write(sender, 2, insert(2, at=1.5, table="sales_Orders"))
    # The broker itself says only that there is no such topic.
    settings["topic"] = "twins.sales_Orders"
    # Soon: the client waits half a minute for a topic.
    settings["options"] = {"kafka.topic.metadata.propagation.max.ms": "3000"}
    with pytest.raises(MessageRefusedError, match="UNKNOWN_TOPIC"):
        output.write(output.sink(**settings), 2, insert(2, at=1.5))


def test_a_topic_that_was_deleted_gets_no_resolved_messages(
    output: Output, kafka_broker: str
) -> None:
    settings = {"topic": "gone.{table}", "resolved": "0s"}
    first = [insert(1, at=0.5, table="A"), insert(2, at=0.6, table="B")]
    output.write(output.sink(**settings), 1, *first)
    admin = AdminClient({"bootstrap.servers": kafka_broker})
    admin.delete_topics(["gone.A"])["gone.A"].result()
    while "gone.A" in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)
    output.write(output.sink(**settings), 2, insert(3, at=1.5, table="B"))
    assert "gone.A" not in admin.list_topics(timeout=10).topics


def test_an_epoch_that_is_written_again_is_in_kafka_once(output: Output, kafka_broker: str) -> None:
    """With many keys, so that every shard has some, and through a kill between the shards."""
    records = [insert(key, at=0.001 * key) for key in range(1, 200)]
    settings = {"topic": "twice.{table}", "resolved": "0s", "shards": 3}
    output.write(output.sink(**settings), 1, *records)
    sink = output.sink(**settings)
    assert complete(sink, output) == AT + timedelta(seconds=1)
    output.write(sink, 1, *records)
    # Spark numbers the epochs of a new checkpoint from 0 again.
    output.write(sink, 0, *records, end=1)
    output.write(sink, 2, *records, insert(1, at=1.5, note="again"))
    for messages in read_topics(kafka_broker, "twice.Orders").values():
        values = [json.loads(message.value() or b"") for message in messages]
        assert [v["resolved"] for v in values if "resolved" in v] == [
            f"{datetime_to_ns(AT + timedelta(seconds=end))}.0000000000" for end in (1, 2)
        ]
    rows = changes_in(kafka_broker, "twice.Orders")
    assert sorted(row["Id"] for row in rows) == sorted([*range(1, 200), 1])
    assert [row["Note"] for row in rows if row["Id"] == 1] == ["", "again"]


def test_a_chunk_of_a_scan_that_is_tried_again_is_in_kafka_once(
    output: Output, kafka_broker: str
) -> None:
    settings = {"topic": "scan.{table}", "shards": 2}
    at = AT + timedelta(seconds=9)
    for chunk in (0, 1, 1, 2):
        keys = range(1 + chunk * 10, 11 + chunk * 10)
        rows = frame(output.session, [insert(key, at=9) for key in keys])
        assert output.sink(**settings).add_scanned(rows, chunk, at) == 10
    sink = output.sink(**settings)
    assert complete(sink, output) is None
    sink.end_scan(output.session, 30, at)
    assert complete(output.sink(**settings), output) == at
    # Asked for its position, a sink has fenced the others: the next epoch is a new one's.
    output.write(output.sink(**settings), 10, insert(1, at=9.5))
    ids = [row["Id"] for row in changes_in(kafka_broker, "scan.Orders")]
    assert sorted(ids) == sorted([*range(1, 31), 1])


@DELIVERIES
def test_records_of_refused_messages_are_set_aside_or_stop_the_pipeline(
    output: Output, kafka_broker: str, delivery: str
) -> None:
    """A message above the client's limit, and one above the topic's own."""
    base = f"large-{delivery}"
    settings = {"topic": f"{base}.{{table}}", "delivery": delivery}
    large = insert(2, at=0.6, note="x" * 1_100_000)
    records = [insert(1, at=0.5), large, *(insert(key, at=0.7) for key in range(3, 20))]
    with pytest.raises(MessageRefusedError, match="MSG_SIZE_TOO_LARGE"):
        output.write(output.sink(**settings), 1, *records)
    sink = output.sink(**settings, bad_records="dead_letter")
    output.write(sink, 1, *records)
    letters = output.dead_letters()
    assert [(m["table_name"], m["message_number"]) for m in letters] == [("Orders", 0)]
    assert letters[0]["record"]["mods"][0]["keys"] == '{"Id": "2"}'
    ids = {row["Id"] for row in changes_in(kafka_broker, f"{base}.Orders")}
    assert ids == {1, *range(3, 20)}
    output.write(sink, 2, insert(20, at=1.5))
    assert len(output.dead_letters()) == 1


@pytest.mark.parametrize("bad_records", ["stop", "dead_letter"])
def test_a_topic_whose_limit_is_less_than_a_batch_gets_many_small_messages(
    output: Output, kafka_broker: str, bad_records: str
) -> None:
    topic = f"small-batches-{bad_records}.Orders"
    admin = AdminClient({"bootstrap.servers": kafka_broker})
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": "65536"})
    admin.create_topics([new])[topic].result()
    settings = {"topic": topic, "shards": 1, "bad_records": bad_records}
    sink = output.sink(**settings)
    for epoch_id, count in ((1, 1_000), (2, 200)):
        rows = [
            insert(1_000 * epoch_id + key, at=epoch_id - 0.5, note="x" * 500)
            for key in range(count)
        ]
        output.write(sink, epoch_id, *rows)
    ids = [row["Id"] for row in changes_in(kafka_broker, topic)]
    assert sorted(ids) == [*range(1_000, 2_000), *range(2_000, 2_200)]
    assert output.dead_letters() == []


def test_letters_that_are_there_are_neither_overwritten_nor_doubled(output: Output) -> None:
    """Written again by a process with the same limit, and by a former owner with another."""
    notes = {1: 10, 2: 300_000, 3: 500_000}
    records = [insert(key, at=key / 10, note="x" * size) for key, size in notes.items()]

    def written_with(limit: int) -> list[str]:
        output.write(output.limited_sink("limited", limit), 1, *records)
        return sorted(m["record"]["mods"][0]["keys"] for m in output.dead_letters())

    second, third = '{"Id": "2"}', '{"Id": "3"}'
    assert written_with(200_000) == [second, third]
    assert written_with(200_000) == [second, third]
    assert written_with(400_000) == [second, third, third]


def test_of_a_scan_the_refused_records_are_set_aside_and_no_others(output: Output) -> None:
    """Records of a chunk may have the same transaction and sequence: each part has its own."""
    sizes = {1: 10, 2: 300_000, 3: 300_000, 4: 100_000, 5: 100_000}
    rows = [insert(key, at=9, note="x" * size) for key, size in sizes.items()]

    def set_aside_with(limit: int) -> list[str]:
        sink = output.limited_sink("limited-scan", limit)
        sink.add_scanned(frame(output.session, rows), 0, AT + timedelta(seconds=9))
        keys = [m["record"]["mods"][0]["keys"] for m in output.dead_letters()]
        return sorted(json.loads(key)["Id"] for key in keys)

    assert set_aside_with(200_000) == ["2", "3"]
    assert set_aside_with(200_000) == ["2", "3"]
    assert set_aside_with(50_000) == ["2", "2", "3", "3", "4", "5"]


def test_the_keys_columns_are_in_the_primary_keys_order(output: Output, kafka_broker: str) -> None:
    asked: list[datetime] = []

    def read(at: datetime) -> dict[str, TableShape]:
        asked.append(at)
        # As of the second epoch there is another table.
        is_first = at == AT + timedelta(seconds=1)
        return {"Seats": TableShape(("Row", "Id"))} if is_first else {"New": TableShape(("Id",))}

    def seat(key: int, *, at: float, table: str = "Seats") -> Any:
        columns = {"Id": "INT64", "Row": "STRING"}
        mods: Any = [({"Id": str(key), "Row": "a"}, {}, {})]
        return record("INSERT", mods, columns, at=round(at * 1_000_000), table=table)

    sink = output.sink(topic="ordered.{table}", envelope="key_only")
    sink.use_shapes(read)
    output.write(sink, 1, seat(1, at=0.5))
    output.write(sink, 2, seat(2, at=1.5), seat(3, at=1.5, table="New"))
    output.write(sink, 3, seat(4, at=2.5))
    keys = [
        json.loads(m.key() or b"")
        for ms in read_topics(kafka_broker, "ordered.Seats").values()
        for m in ms
    ]
    assert sorted(keys) == [["a", 1], ["a", 2], ["a", 4]]
    # The information schema is read when a table is new, and as of the epoch that it is in.
    assert asked == [AT + timedelta(seconds=1), AT + timedelta(seconds=2)]


def test_an_epoch_that_was_sent_in_part_is_completed_with_another_envelope(
    output: Output, kafka_broker: str
) -> None:
    """A message of one shard is refused; the settings are changed before the epoch comes again."""
    large = insert(1, at=0.5, note="x" * 1_100_000)
    records = [large, *(insert(key, at=0.5) for key in range(2, 60))]
    settings = {"topic": "changed.{table}", "shards": 3}
    with pytest.raises(MessageRefusedError, match="MSG_SIZE_TOO_LARGE"):
        output.write(output.sink(**settings, envelope="flat"), 1, *records)
    sent = [m for ms in read_topics(kafka_broker, "changed.Orders").values() for m in ms]
    assert 0 < len(sent) < 58
    others = {"envelope": "datastream", "bad_records": "dead_letter"}
    output.write(output.sink(**settings, **others), 1, *records)
    messages = [m for ms in read_topics(kafka_broker, "changed.Orders").values() for m in ms]
    assert sorted(json.loads(m.key() or b"")["Id"] for m in messages) == list(range(2, 60))


def test_a_registry_that_is_away_costs_no_message(output: Output, kafka_broker: str) -> None:
    """Away before an epoch is sent, and between its last record and its resolved messages."""
    with running_registry() as (registry, url):
        avro = {"format": "avro", "confluent_schema_registry": url, "envelope": "flat"}
        settings = {"topic": "away.{table}", "resolved": "0s", **avro}

        def write(sink: MessageSink, epoch_id: int, table: str) -> None:
            change = insert(epoch_id, at=epoch_id - 0.5, table=table)
            output.write(sink, epoch_id, change)

        write(output.sink(**settings), 1, "A")
        registry.is_away = True
        with pytest.raises(PublishError, match=r"registry, subject away\.B-key: it can't"):
            write(output.sink(**settings), 2, "B")
        registry.is_away = False
        # Its resolved messages for A ask for A's schema, which this process has not seen.
        sink = output.sink(**settings)
        resolved = MessageSink._resolved_messages
        with pytest.MonkeyPatch.context() as patched:

            def away_from_here(*arguments: Any) -> Any:
                registry.is_away = True
                return resolved(*arguments)

            patched.setattr(MessageSink, "_resolved_messages", away_from_here)
            with pytest.raises(PublishError, match=r"registry, subject away\.A-value: it"):
                write(sink, 2, "B")
        registry.is_away = False
        write(sink, 2, "B")
        write(sink, 3, "A")
        decode = decoder("avro", registry.schemas)
        values = [
            decode(message.value() or b"")
            for messages in read_topics(kafka_broker, "away.").values()
            for message in messages
        ]
    changes = [value["key"]["Id"] for value in values if value["resolved"] is None]
    assert sorted(changes) == [1, 2, 3]
    # One for A in the first epoch; for both in the others.
    assert len(values) - len(changes) == (1 + 2 + 2) * PARTITIONS


def test_a_part_of_a_row_is_refused_when_the_change_stream_is_altered(output: Output) -> None:
    sink = output.sink(topic="parts.{table}")
    output.write(sink, 1, insert(1, at=0.5))
    with pytest.raises(PartialRowError, match="changes of value capture type NEW_VALUES lack"):
        output.write(sink, 2, insert(2, at=1.5, capture="NEW_VALUES"))
    part = insert(2, at=1.5, capture="NEW_VALUES")
    output.write(output.sink(topic="parts.{table}", envelope="flat"), 2, part)


def complete(sink: MessageSink, output: Output) -> datetime | None:
    position = sink.position(output.session)
    assert position is not None
    return position.complete


def changes_in(host: str, topic: str) -> list[dict[str, Any]]:
    """Return the rows after each change of a topic, in order for each key."""
    messages = [m for of_partition in read_topics(host, topic).values() for m in of_partition]
    values = [json.loads(message.value() or b"") for message in messages]
    return [value["after"] for value in values if "resolved" not in value]


@pytest.mark.parametrize(
    ("delivery", "written_in"),
    [
        ("exactly_once", "json"),
        ("at_least_once", "json"),
        ("exactly_once", "avro"),
        ("exactly_once", "protobuf"),
    ],
)
def test_with_strict_a_topic_has_the_connectors_columns_headers_watermarks_and_heartbeats(
    output: Output, kafka_broker: str, delivery: str, written_in: str
) -> None:
    base = f"strict-{delivery}-{written_in}"
    shape = TableShape(("Id",), {"Id": "INT64", "Note": "STRING(9)", "Seen": "TIMESTAMP"})
    beats = f"__debezium-heartbeat.{base}"
    with running_registry() as (registry, url):
        settings = {
            "topic": f"{base}.{{table}}",
            "envelope": "debezium",
            "strict": True,
            "resolved": "0s",
            "heartbeats_topic": beats,
            "delivery": delivery,
            "format": written_in,
            **({} if written_in == "json" else {"confluent_schema_registry": url}),
        }

        def sink() -> MessageSink:
            made = output.sink(**settings)
            made.use_shapes(lambda _: {"Orders": shape})
            return made

        output.write(sink(), 1, insert(1, at=0.5, capture="NEW_VALUES"))
        # Another process has not seen the table's records.
        output.write(sink(), 2)
        decode = decoder(written_in, registry.schemas)
    of_table = [m for ms in read_topics(kafka_broker, f"{base}.Orders").values() for m in ms]
    headers_of = [dict(cast(list[tuple[str, bytes]], m.headers())) for m in of_table]
    values = list(zip((decode(m.value() or b"") for m in of_table), headers_of, strict=True))
    ((change, headers),) = [(v, h) for v, h in values if v["op"] == "c"]
    # Protobuf has an empty text as NULL.
    note = None if written_in == "protobuf" else ""
    assert change["after"] == {"Id": 1, "Note": note, "Seen": None}
    assert headers["__debezium.context.connectorName"] == output.pipeline.encode()
    assert uuid.UUID(headers["spannerDataChangeRecordUid"].decode())
    watermarks = [(v, h) for v, h in values if v["op"] == "m"]
    assert len(watermarks) == 2 * PARTITIONS
    for value, of_watermark in watermarks:
        assert (value["before"], value["after"]) == (None, None)
        assert value["source"]["table"] == "Orders"
        assert of_watermark["spannerDataChangeRecordUid"].startswith(b"watermark-")
    marks = {value["source"]["low_watermark"] for value, _ in watermarks}
    assert marks == {datetime_to_ns(AT + timedelta(seconds=s)) // 1_000_000 for s in (1, 2)}
    # The second process beats at once, though no partition has records.
    tokens = [decode(m.key() or b"") for m in read_topics(kafka_broker, beats)[beats, 0]]
    assert tokens == [{"partitionToken": "partition"}, {"partitionToken": "Parent0"}]
