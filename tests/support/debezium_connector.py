"""The messages of Debezium's connector for Spanner, made by its own classes.

`python -m tests.support.debezium_connector SOURCES` writes those that tests compare ours with, and
needs Maven's repository for that. SOURCES is a checkout of Confluent's Schema Registry (v8.3.0),
whose converter for Protobuf is built, as Maven's repository does not have it. The records stand
here: one for each way in which a change may come.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slackwater.pipeline.spark.java import find_java
from slackwater.reader.change_stream import Dialect
from slackwater.spark_sink.sql.table_shape import TableShape
from slackwater.timestamp import datetime_to_rfc3339
from tests.support import ivy
from tests.support.row_changes import ORIGIN, WATERMARK_MS, of_ms, record

MESSAGES: Final = Path(__file__).with_name("debezium_messages.json")
_TIMES: Final = ("ts_ms", "ts_us", "ts_ns")
_PARTS: Final = ("key", "value")
_HERE: Final = Path(__file__).parent
_PROPERTIES: Final = {
    "name": ORIGIN.pipeline,
    "topic.prefix": ORIGIN.pipeline,
    "task.id": "0",
    "gcp.spanner.project.id": ORIGIN.project,
    "gcp.spanner.instance.id": ORIGIN.instance,
    "gcp.spanner.database.id": ORIGIN.database,
    "gcp.spanner.change.stream": ORIGIN.change_stream,
    "gcp.spanner.low-watermark.enabled": "true",
}


@dataclass(frozen=True)
class Changes:
    """Changes of a database.

    Attributes:
        shapes: of its tables.
        records: of its changes.
    """

    dialect: Dialect
    shapes: Mapping[str, TableShape]
    records: Sequence[Mapping[str, Any]]


_ANNE: Final = {"id": 1, "first_name": "Anne", "email": "annek@noanswer.org"}
_USER_TYPES: Final = {"id": "INT64", "first_name": "STRING", "email": "STRING"}
_TYPES: Final = {
    "i": "INT64",
    "b": "BOOL",
    "f": "FLOAT32",
    "d": "FLOAT64",
    "n": "NUMERIC",
    "j": "JSON",
    "x": "BYTES",
    "s": "STRING",
    "t": "TIMESTAMP",
    "a": "DATE",
    "u": "UUID",
}
_VALUES: Final = {
    "i": 9_223_372_036_854_775_807,
    "b": True,
    # 0.1, as Spanner sends it.
    "f": 0.10000000149011612,
    "d": 1e300,
    "n": "1.500",
    "j": '{"a": [1.0, null]}',
    "x": "AAE=",
    "s": "it's\n\u2028",
    "t": "2026-01-31T09:00:00.123456789Z",
    "a": "2026-01-31",
    "u": "0b8c0a04-43e8-4d1c-9f9e-7c6f0a3b1c2d",
}
# Without numeric and jsonb: the connector ends at a type with an annotation, as theirs have.
_PG_TYPES: Final = {
    "i": "bigint",
    "b": "boolean",
    "f": "real",
    "d": "double precision",
    "x": "bytea",
    "s": "character varying",
    "t": "timestamp with time zone",
    "a": "date",
    "u": "uuid",
}
_OTHERS: Final = {"i": -1, "b": False, "f": "NaN", "d": "-Infinity", "n": "0", "j": "null"}
_ITEMS: Final = {name: [str(v) if name == "i" else v, None] for name, v in _VALUES.items()}


def _array(name: str) -> str:
    return json.dumps({"code": "ARRAY", "array_element_type": {"code": _TYPES[name]}})


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the insert of a row with an array of each type."""
    types = {"id": "INT64", **dict.fromkeys(values, "ARRAY")}
    change = record("Arrays", types, ["id"], None, {"id": 1, **values})
    for column in change["column_types"][1:]:
        column["type"] = _array(column["name"])
    return change


def _two_mods() -> dict[str, Any]:
    change = record("Users", _USER_TYPES, ["id"], None, _ANNE)
    return {**change, "mods": [*change["mods"], *change["mods"]]}


_USERS: Final = TableShape(
    ("id",),
    {"id": "INT64", "first_name": "STRING(MAX)", "email": "STRING(100)", "seen": "TIMESTAMP"},
    ("email", "seen"),
)
_PLACES: Final = TableShape(
    ("city", "at"), {"name": "STRING(MAX)", "at": "INT64", "city": "STRING(MAX)"}, ("at", "name")
)
_PLACE_TYPES: Final = {"name": "STRING", "at": "INT64", "city": "STRING"}
_PARIS: Final = {"name": "Paris", "at": 7, "city": "x"}
CASES: Final[Mapping[str, Changes]] = {
    "googlesql": Changes(
        Dialect.GOOGLE_STANDARD_SQL,
        {
            "Users": _USERS,
            "Places": _PLACES,
            "Types": TableShape(("i",), _TYPES | {"s": "STRING(MAX)", "x": "BYTES(10)"}, [*_TYPES]),
            "Arrays": TableShape(
                ("id",), {"id": "INT64", **{n: f"ARRAY<{t}>" for n, t in _TYPES.items()}}, ()
            ),
        },
        [
            record("Users", _USER_TYPES, ["id"], None, _ANNE),
            record("Users", _USER_TYPES, ["id"], _ANNE, _ANNE | {"first_name": "Anne Marie"}),
            record("Users", _USER_TYPES, ["id"], _ANNE, None),
            _two_mods(),
            # Of an update some columns are captured.
            record(
                "Users",
                {"id": "INT64", "email": "STRING"},
                ["id"],
                {"id": 1},
                {"id": 1, "email": None},
            ),
            *(
                record("Users", _USER_TYPES, ["id"], {"id": 1}, _ANNE, value_capture_type=capture)
                for capture in ("NEW_ROW", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES")
            ),
            record(
                "Users",
                _USER_TYPES,
                ["id"],
                _ANNE,
                None,
                transaction_tag="app=shop",
                is_system_transaction=True,
                is_last_record_in_transaction_in_partition=False,
                record_sequence="00000012",
            ),
            record("Places", _PLACE_TYPES, ["at", "city"], None, _PARIS),
            record("Places", _PLACE_TYPES, ["at", "city"], _PARIS | {"at": None}, None),
            record("Types", _TYPES, ["i"], None, _VALUES),
            record("Types", _TYPES, ["i"], _VALUES, dict.fromkeys(_TYPES) | _OTHERS),
            _arrays(_ITEMS),
            _arrays(dict.fromkeys(_TYPES)),
            _arrays({name: [] for name in _TYPES}),
        ],
    ),
    "postgresql": Changes(
        Dialect.POSTGRESQL,
        {"Types": TableShape(("i",), _PG_TYPES, [*_PG_TYPES])},
        [
            record(
                "Types",
                {name: _TYPES[name] for name in _PG_TYPES},
                ["i"],
                None,
                {name: _VALUES[name] for name in _PG_TYPES},
            )
        ],
    ),
}


def as_sent(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as JSON."""
    times = {n: datetime_to_rfc3339(change[n]) for n in ("commit_timestamp", "low_watermark")}
    return {**change, **times}


def messages(changes: Changes, converters: str = "") -> list[dict[str, Any]]:
    """Return the connector's messages: topic, partition, key, value and headers of each.

    The last ones are those with the low watermark.

    Args:
        changes: that they are of.
        converters: the class path of Confluent's converter for Protobuf; empty for none.
    """
    tables = {
        name: [
            [column, kind, column in shape.key, column in shape.nullable]
            for column, kind in shape.columns.items()
        ]
        for name, shape in changes.shapes.items()
    }
    wanted = {
        "properties": _PROPERTIES,
        "dialect": changes.dialect,
        "lowWatermark": datetime_to_rfc3339(of_ms(WATERMARK_MS)),
        "tables": tables,
        "records": [as_sent(change) for change in changes.records],
    }
    jars = ivy.jars(
        "debezium-connector",
        ["-ivy", str(_HERE / "debezium.ivy.xml")],
        "debezium-connector-spanner",
    )
    ran = subprocess.run(
        [
            *(str(find_java()), "-cp", os.pathsep.join(filter(None, (converters, f"{jars}/*")))),
            str(_HERE / "DebeziumConnector.java"),
        ],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-5_000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def compact(made: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payloads of messages without what no two runs have in common, and their schemas.

    The schemas stand there once for each topic, of headers only the names, and of heartbeats only
    the first.
    """
    schemas: dict[str, dict[str, Any]] = {}
    by_place = []
    for message in made:
        made_with = {part: message[part]["schema"] for part in _PARTS if message[part]}
        of_formats = {f"{part} in Avro": message[f"avro_{part}"] for part in made_with} | {
            f"{part} in Protobuf": message[f"protobuf_{part}"]["schema"]
            for part in made_with
            if f"protobuf_{part}" in message
        }
        made_with |= of_formats
        of_topic = schemas.setdefault(message["topic"], made_with)
        assert of_topic | made_with == made_with | of_topic
        of_topic |= made_with
        stable = {
            "topic": message["topic"],
            **without_clock({part: message[part] and message[part]["payload"] for part in _PARTS}),
            "headers": sorted(message["headers"]),
        }
        is_heartbeat = message["topic"].startswith("__debezium")
        if not is_heartbeat and "protobuf_key" in message:
            stable["protobuf"] = {
                part: (message[f"protobuf_{part}"] or {}).get("message") for part in _PARTS
            }
        if not is_heartbeat or stable not in by_place:
            by_place.append(stable)
    return {"schemas": schemas, "messages": by_place}


def without_clock(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message's key and value without the present time and the writer's version."""
    value = message["value"] and dict(message["value"])
    if value and "op" not in value:
        value = dict.fromkeys(value)
    elif value:
        present = [name for name in _TIMES if value[name] is not None]
        source = {**value["source"], **dict.fromkeys(("version", "read_at_timestamp"))}
        if value["op"] == "m":
            source |= dict.fromkeys(_TIMES)
        value |= {**dict.fromkeys(present, "now"), "source": source}
    return {**message, "value": value}


def all_messages(converters: str = "") -> dict[str, Any]:
    """Return what the connector makes of all cases; see messages()."""
    return {name: compact(messages(changes, converters)) for name, changes in CASES.items()}


def build_converter(sources: Path, folder: Path) -> str:
    """Build Confluent's converter for Protobuf; return its class path.

    Args:
        sources: a checkout of Confluent's Schema Registry.
        folder: for the classes.
    """
    jars = ivy.jars("confluent", ["-ivy", str(_HERE / "confluent.ivy.xml")], "wire-schema-jvm")
    modules = os.pathsep.join(str(path) for path in sources.glob("*/src/main/java"))
    converter = "protobuf-converter/src/main/java/io/confluent/connect/protobuf/ProtobufData.java"
    options = ["-proc:none", "-nowarn", "-d", folder, "-cp", f"{jars}/*", "-sourcepath", modules]
    javac = find_java().with_name("javac")
    subprocess.run([str(javac), *map(str, options), str(sources / converter)], check=True)
    # Before the connector's, as it needs a newer Protobuf.
    return f"{folder}{os.pathsep}{jars}/*"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder:
        _made = all_messages(build_converter(Path(sys.argv[1]), Path(_folder)))
    MESSAGES.write_text(json.dumps(_made, indent=1) + "\n")
