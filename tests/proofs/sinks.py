"""Every format with every envelope, in one process that is killed; all equal the truth.

python -m tests.proofs.sinks [--only NAME ...] [--format NAME ...] [--dialect NAME]
"""

import argparse
import io
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pj
import yaml

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.errors import StateError
from slackwater.state.store import Store
from slackwater.testing.compare import compare, read_changelog
from slackwater.testing.plain_client import Truth, TruthRecord
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.support.emulators import own_database
from tests.support.read_tables import rows_at
from tests.support.services import settings
from tests.support.truths import truth_of
from tests.support.typed_changelogs import expected_changes, written_changes

Sink = Mapping[str, Any]
RECORDS: dict[str, Sink] = {
    name: {"format": name} for name in ("parquet", "json", "orc", "delta", "iceberg")
}
ENVELOPES = ("flat", "wrapped", "row", "key_only", "datastream", "debezium")
# A format and an envelope.
PAIRS: dict[str, Sink] = {
    f"{name}_{envelope}": {"format": name, "envelope": envelope}
    for name in RECORDS
    for envelope in ENVELOPES
}
SINKS: dict[str, Sink] = {
    **RECORDS,
    **PAIRS,
    "folders": {"partition_by": ["table_name", "date"]},
    "delta_folders": {"format": "delta", "partition_by": ["table_name"]},
    "iceberg_folders": {"format": "iceberg", "partition_by": ["table_name", "date"]},
    "passed": {"kind": "spark", "format": "parquet", "options": {}},
    "changelogs": {"kind": "changelogs"},
    "iceberg_changelogs": {"kind": "changelogs", "format": "iceberg"},
}
JSON_COLUMNS = ("Details", "Extra", "Texts")
TRANSACTIONS_PER_SECOND = 20


class Pipelines(Service):
    """A service with several pipelines."""

    def __init__(
        self,
        pipelines_settings: Mapping[str, Any],
        names: Iterable[str],
        folder: Path,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(pipelines_settings, folder, environ)
        self._names = tuple(names)

    def move_store(self, state_url: str) -> None:
        """Give the next start another metadata store."""
        self._settings = {**self._settings, "state": {"url": state_url}}
        self.config.write_text(yaml.safe_dump(self._settings, sort_keys=False))

    def low_watermark_ns(self) -> int | None:
        """Return the lowest low watermark of the pipelines."""
        try:
            # Not migrated here: the service may be of a former version.
            store = Store.open(self._settings["state"]["url"], migrate=False)
        except StateError:
            return None
        try:
            by_pipeline = {p.name: p.low_watermark_ns for p in store.pipelines()}
        finally:
            store.close()
        low_watermarks_ns = [by_pipeline.get(name) for name in self._names]
        return (
            None
            if None in low_watermarks_ns
            else min(ns for ns in low_watermarks_ns if ns is not None)
        )


def run(
    stream: ChangeStream,
    folder: Path,
    names: Sequence[str],
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL,
    state_url: str | None = None,
    before: str = sys.executable,
    after: tuple[str, str] | None = None,
) -> dict[str, int]:
    """Write, stop once and catch up; return how many changes of each pipeline equal the truth.

    Args:
        stream: the change stream of a database with the demo's schema.
        folder: for everything that the pipelines write.
        names: keys of SINKS.
        dialect: the database's.
        state_url: the metadata store's URL; None for a file in the folder.
        before: the Python that runs the service first.
        after: the Python that runs it after a drain, and the URL of its metadata store; None for
            this one, with the same store, after a kill.
    """
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipelines_settings = settings(stream, folder, format_rfc3339(start_ns))
    del pipelines_settings["pipeline"], pipelines_settings["sink"]
    pipelines_settings["spark"]["conf"] = {"spark.driver.memory": "2g"}
    pipelines_settings["pipelines"] = {
        name: {"sink": sink_settings(name, folder / name, folder / f"{name}-checkpoint")}
        for name in names
    }
    if state_url is not None:
        pipelines_settings["state"]["url"] = state_url
    service = Pipelines(pipelines_settings, names, folder)
    service.python = before
    load, stop = Load(stream, dialect, seed=17), threading.Event()
    rate: dict[str, Any] = {"transactions_per_second": TRANSACTIONS_PER_SECOND, "seconds": 600}
    writer = threading.Thread(target=load.run, kwargs={**rate, "stop": stop})
    try:
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=900)
        writer.start()
        written_ns = connection.strong_read_timestamp_ns() + 3 * 10**9
        service.wait_for_watermark(written_ns, seconds_max=900)
        if after is None:
            service.kill()
            service.python = sys.executable
        else:
            assert service.drain() == 0, service.log.read_text()[-3_000:]
            service.python, other_state_url = after
            service.move_store(other_state_url)
        service.start()
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=900)
        stop.set()
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=900)
        assert service.drain() == 0, service.log.read_text()[-3_000:]
    finally:
        stop.set()
        service.kill()
    connection.close()
    truth = truth_of(stream, start_ns, end_ns, dialect)
    assert sum(len(record.mods) > 1 for record in truth.records) > 10, "few records of several mods"
    return {name: require_equal(name, folder / name, truth) for name in names}


def sink_settings(name: str, path: Path, checkpoint: Path) -> dict[str, Any]:
    """Return the section sink of the settings for a key of SINKS."""
    of_sink = dict(SINKS[name])
    if name == "passed":
        of_sink["options"] = {"path": str(_passed(path))}
    if of_sink.get("envelope") in ("wrapped", "row"):
        of_sink["updated"] = True
    return {**of_sink, "path": str(path), "checkpoint": str(checkpoint)}


def _passed(path: Path) -> Path:
    """Return where Spark writes what it is passed, beside the pipeline's own files."""
    return path.with_name(f"{path.name}-passed")


def require_equal(name: str, path: Path, truth: Truth) -> int:
    """Require that an output equals the truth, and return its number of records or changes."""
    if SINKS[name].get("kind") == "changelogs":
        changes, wanted = written_changes(path), expected_changes(truth.records)
        assert changes == wanted, (name, changes - wanted, wanted - changes)
        return wanted.total()
    if "envelope" not in SINKS[name]:
        output = records_at(name, path)
        comparison = compare(output, truth.records)
        # A format that knows nothing of epochs may double those of a kill.
        doubled = [] if name == "passed" else comparison.doubled
        differences = (comparison.missing, comparison.unexpected, doubled)
        assert differences == ([], [], []), (name, [some[:3] for some in differences])
        return len(truth.records)
    file_format, envelope = SINKS[name]["format"], SINKS[name]["envelope"]
    expected = Counter(
        change for record in truth.records for change in expected_changes_of(envelope, record)
    )
    output_changes = Counter(map(CHANGE_OF[envelope], _messages(file_format, path)))
    if (file_format, envelope) == ("json", "debezium"):
        # The key is in the line's before or after only.
        expected = Counter((*c[:3], c[4]) for c in expected.elements())
        output_changes = Counter((*c[:3], c[4]) for c in output_changes.elements())
    assert output_changes == expected, (name, output_changes - expected, expected - output_changes)
    return expected.total()


def records_at(name: str, path: Path) -> pa.Table:
    """Return the records of an output without an envelope."""
    match SINKS[name].get("format"):
        case "delta" | "iceberg" as table_format:
            return rows_at(table_format, path)
        case "json":
            return from_json(path)
        case "orc":
            return ds.dataset(path, format="orc", partitioning="hive").to_table()
    if name == "passed":
        return ds.dataset(_passed(path), format="parquet").to_table()
    return read_changelog(path)


def from_json(path: Path) -> pa.Table:
    """Return the records of a changelog in JSON, with the types that Arrow infers."""
    files = sorted(path.glob("epoch=*/*.json"))
    contents = [file.read_bytes() for file in files]
    text = b"".join(contents)
    # As a data set of many files Arrow's reader of JSON may wait for itself for ever, and each
    # file would have types of its own.
    table = pj.read_json(io.BytesIO(text), pj.ReadOptions(use_threads=False, block_size=len(text)))
    epochs = [
        file.parent.name.removeprefix("epoch=")
        for file, content in zip(files, contents, strict=True)
        for _ in range(content.count(b"\n"))
    ]
    table = table.append_column("epoch", [epochs])
    for name in ("commit_timestamp", "low_watermark"):
        if (at := table.schema.get_field_index(name)) >= 0:
            stamps = pa.compute.cast(table.column(at), pa.timestamp("us", "UTC"))
            table = table.set_column(at, name, stamps)
    return table


def _messages(file_format: str, path: Path) -> list[dict[str, Any]]:
    match file_format:
        case "json":
            files = sorted(path.glob("epoch=*/*.txt"))
            # A text may have a separator that splitlines() knows, such as U+2028.
            lines = [line for file in files for line in file.read_text().split("\n") if line]
            return list(map(_of_line, lines))
        case "delta" | "iceberg":
            rows = rows_at(file_format, path)
        case _:
            rows = ds.dataset(path, format=file_format).to_table()
    messages: list[dict[str, Any]] = rows.to_pylist()
    return messages


def _of_line(line: str) -> dict[str, Any]:
    """Return a line as the message that it was, with its table and key if they stand in it."""
    value = _loads(line)
    fields = value.get("__crdb__", value)
    if "topic" not in fields:
        return {"table_name": None, "key": None, "value": line}
    table, key = fields.pop("topic"), json.dumps(fields.pop("key"))
    # What is left of a deleted row is its time.
    is_deleted = "__crdb__" in value and len(value) == 1
    text = "null" if is_deleted else json.dumps(value)
    return {"table_name": table, "key": key, "value": text}


def _loads(text: str | None) -> Any:
    """Parse JSON with numbers as texts, as Spanner writes most of them."""
    return None if text is None else json.loads(text, parse_int=str, parse_float=str)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _frozen(inner)) for key, inner in sorted(value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _row(*texts: str) -> Any:
    """Merge the JSON texts of a row, with a JSON column parsed; None if they are empty."""
    merged = {name: value for text in texts for name, value in _loads(text).items()}
    return _frozen(_with_json(merged))


def _with_json(row: dict[str, Any]) -> dict[str, Any]:
    """Parse the JSON columns of a row, which are texts."""
    return row | {name: _json(row[name]) for name in JSON_COLUMNS if name in row}


def _json(value: Any) -> Any:
    return list(map(_json, value)) if isinstance(value, list) else _loads(value)


def expected_changes_of(envelope: str, record: TruthRecord) -> list[tuple[Any, ...]]:
    """Return a record's changes as an envelope has to show them, from the truth alone."""
    at_ns = parse_rfc3339(record.commit_timestamp)
    changes: list[tuple[Any, ...]] = []
    for number, (keys, new, _) in enumerate(record.mods):
        is_delete = record.mod_type == "DELETE"
        after = None if is_delete else _row(keys, new)
        key = tuple(_loads(keys).values())
        place = (record.server_transaction_id, record.record_sequence, str(number))
        match envelope:
            case "wrapped":
                changes.append((record.table_name, key, after, at_ns))
            case "row":
                changes.append((record.table_name, key, after, None if is_delete else at_ns))
            case "key_only":
                changes.append((record.table_name, key))
            case "flat":
                changes.append((*place, record.table_name, _row(keys), after))
            case "datastream":
                changes.append((*place, record.table_name, is_delete, at_ns))
            case "debezium":
                changes.append((*place[:2], record.table_name, _row(keys), after))
    return changes


def _updated_ns(value: Mapping[str, Any]) -> int:
    return int(value["updated"].partition(".")[0])


def _wrapped(message: Mapping[str, Any]) -> tuple[Any, ...]:
    value = _loads(message["value"])
    return message["table_name"], _key(message), _frozen(value["after"]), _updated_ns(value)


def _plain_row(message: Mapping[str, Any]) -> tuple[Any, ...]:
    value = _loads(message["value"])
    if value is None:
        return message["table_name"], _key(message), None, None
    stated = _updated_ns(value.pop("__crdb__"))
    return message["table_name"], _key(message), _frozen(value), stated


def _key_only(message: Mapping[str, Any]) -> tuple[Any, ...]:
    return message["table_name"], _key(message)


def _key(message: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(_loads(message["key"]) or ())


def _flat(message: Mapping[str, Any]) -> tuple[Any, ...]:
    value = _loads(message["value"])
    place = (value["server_transaction_id"], value["record_sequence"], value["mod_number"])
    return *place, value["table_name"], _frozen(value["key"]), _frozen(value["after"])


def _datastream(message: Mapping[str, Any]) -> tuple[Any, ...]:
    value = _loads(message["value"])
    source = value["source_metadata"]
    at_ns = parse_rfc3339(value["source_timestamp"])
    return *value["sort_keys"][1:], value["object"], source["is_deleted"], at_ns


def _debezium(message: Mapping[str, Any]) -> tuple[Any, ...]:
    value, key = _loads(message["value"]), _loads(message["key"])
    source = value["source"]
    sequence = f"{int(source['sequence']):08d}"
    if prefix := source.get("record_sequence_prefix"):
        # Of a stream with mutable key ranges.
        sequence = f"{prefix}-{int(source['sequence']):08x}"
    # A JSON column is a string here, as Debezium's connector has it.
    after = value["after"] and _frozen(_with_json(value["after"]))
    return source["server_transaction_id"], sequence, source["table"], _frozen(key), after


# What makes a comparable change of a message: its table_name, key and value.
CHANGE_OF: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "wrapped": _wrapped,
    "row": _plain_row,
    "key_only": _key_only,
    "flat": _flat,
    "datastream": _datastream,
    "debezium": _debezium,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SINKS, default=[])
    parser.add_argument(
        "--format", nargs="*", choices=RECORDS, default=[], help="and all envelopes"
    )
    parser.add_argument(
        "--dialect", type=Dialect, choices=list(Dialect), default=Dialect.GOOGLE_STANDARD_SQL
    )
    options = parser.parse_args()
    of_format = [name for name in (*RECORDS, *PAIRS) if name.split("_")[0] in options.format]
    names = [*options.only, *of_format] or list(SINKS)
    with (
        own_database(options.dialect) as stream,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        for name, count in run(stream, Path(folder), names, options.dialect).items():
            print(f"{options.dialect} {name}: {count} equal", flush=True)


if __name__ == "__main__":
    main()
