"""Listed cells of a table of Bigtable's as columns, in every sink that takes them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pyarrow.dataset as ds
import pytest

from tests.support.bigquery import BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.bigtable_columns import COLUMNS, Listed, listed_in, shown, shown_in, typed
from tests.support.bigtable_pipelines import history as history
from tests.support.bigtable_pipelines import host as host
from tests.support.bigtable_pipelines import pipelines_of, run_with_a_kill
from tests.support.bigtable_pipelines import shape as shape
from tests.support.database_places import (
    BigQueryPlace,
    DuckLakePlace,
    postgresql_place,
)
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics, spark_conf
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server
from tests.support.pubsub import PubSubEmulator
from tests.support.pubsub import pubsub as pubsub
from tests.support.read_tables import rows_at
from tests.synthetic.bigtable.history import History, Shape

FILES: Final = ("parquet", "delta", "iceberg")
TOPIC: Final = "clicks"
NO_SPARK: Final = cast("Any", None)


@pytest.fixture
def topics(kafka_broker: str, pubsub: PubSubEmulator) -> dict[str, dict[str, Any]]:
    pubsub.create(TOPIC)
    flat = {"format": "json", "envelope": "flat", "topic": TOPIC}
    options = {"kafka.bootstrap.servers": kafka_broker}
    return {
        "kafka": {"kind": "kafka", "shards": 1, "options": options, **flat},
        "pubsub": {"kind": "pubsub", "project": pubsub.project, **flat},
    }


@pytest.mark.long
def test_listed_cells_are_in_every_sink_after_a_kill(
    shape: Shape,
    history: History,
    host: str,
    server: BigQueryServer,
    door: Door,
    new_postgres_url: Callable[[], str],
    topics: dict[str, dict[str, Any]],
    pubsub: PubSubEmulator,
    kafka_broker: str,
    tmp_path: Path,
) -> None:
    kind, folder = "changelogs", tmp_path / "databases"
    with postgresql_place(new_postgres_url(), NO_SPARK, folder, kind) as postgresql:
        databases = {
            "postgresql": postgresql,
            "ducklake": DuckLakePlace(NO_SPARK, folder, kind),
        }
        formats = (*FILES, "bigquery", *databases, *topics)
        _, settings = pipelines_of(formats, shape, host, tmp_path)
        settings["spark"] = {"conf": spark_conf()}
        settings["source"]["columns"] = COLUMNS
        sinks = {name: each["sink"] for name, each in settings["pipelines"].items()}
        for name in ("delta", "iceberg"):
            sinks[name]["kind"] = kind
        for name, place in databases.items():
            sinks[name] |= {"kind": kind, **place.at()}
        sinks["bigquery"] |= BigQueryPlace(server, door, NO_SPARK, folder, kind).at()
        for name, topic in topics.items():
            sinks[name] = settings["pipelines"][name]["sink"] = {
                "checkpoint": sinks[name]["checkpoint"],
                **topic,
            }
        run_with_a_kill(settings, tmp_path)
        expected = Counter(map(listed_in, history.changes))
        landed = {name: Counter(rows_in(name, tmp_path / name)) for name in FILES}
        for name, place in databases.items():
            landed[name] = Counter(map(typed, place.rows("table")))
    [changes] = server.client.list_tables(sinks["bigquery"]["path"].rpartition("/")[2])
    records = server.query(f"SELECT * FROM `{changes.full_table_id.replace(':', '.')}`")
    landed["bigquery"] = Counter(row for record in records for row in rows_of(record))
    sent = [m for of_place in read_topics(kafka_broker, TOPIC).values() for m in of_place]
    landed["kafka"] = Counter(shown_in(json.loads(message.value() or "")) for message in sent)
    for name, rows in landed.items():
        assert rows == expected, name
    delivered = {shown_in(json.loads(message.data)) for message in pubsub.pull(TOPIC)}
    assert delivered == expected.keys()


def rows_in(name: str, path: Path) -> list[Listed]:
    if name != "parquet":
        return list(map(typed, rows_at(name, path / "table").to_pylist()))
    records = ds.dataset(path, partitioning="hive").to_table().to_pylist()
    return [row for record in records for row in rows_of(record)]


def rows_of(record: Mapping[str, Any]) -> Iterator[Listed]:
    """Yield the rows of a data change record."""
    for mod in record["mods"]:
        keys, values = json.loads(mod["keys"]), json.loads(mod["new_values"])
        yield shown(record["commit_timestamp"], keys, values)
