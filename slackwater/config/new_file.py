"""The text of a new settings file: the keys that a sink needs, each with its meaning."""

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import yaml
from pydantic import ValidationError

from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.change_stream import ChangeStream
from slackwater.spark_sink.formats import DUCKLAKE
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.sinks.registry import parse_sink_settings
from slackwater.spark_sink.sinks.sink_settings import SinkSettings

_WIDTH: Final = 96
_TABLES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """A sink that a new settings file can have.

    Attributes:
        meaning: its output, for people.
        keys: the keys under sink, apart from path and checkpoint, in their order.
        folder: its output, below the pipeline's folder.
        folder_meaning: the content of that folder, for people.
        needs_servers: whether it sends to Kafka's brokers.
        url: of the database that it writes to, with {project} and {database}; empty for a folder.
        trigger: from one epoch's start to the next one's, if the default is too often.
    """

    meaning: str
    keys: Mapping[str, str]
    folder: str = "changes"
    folder_meaning: str = "Where epochs appear."
    needs_servers: bool = False
    url: str = ""
    trigger: str = ""


_DATASET: Final = "BigQuery's dataset, which has to be there."
_STAGING: Final = "Where epochs wait for their audit."
SINKS: Final[Mapping[str, SinkChoice]] = {
    "parquet": SinkChoice(
        "Every change, appended as Parquet files.", {"kind": "changelog", "format": "parquet"}
    ),
    "json": SinkChoice(
        "Every change, appended as files of JSON lines.", {"kind": "changelog", "format": "json"}
    ),
    "orc": SinkChoice(
        "Every change, appended as ORC files.", {"kind": "changelog", "format": "orc"}
    ),
    "delta": SinkChoice(
        "Every change, appended to one Delta table.", {"kind": "changelog", "format": "delta"}
    ),
    "iceberg": SinkChoice(
        "Every change, appended to one Iceberg table.", {"kind": "changelog", "format": "iceberg"}
    ),
    "bigquery": SinkChoice(
        "Every change, appended to the table `changes` in BigQuery.",
        {"kind": "changelog", "format": "bigquery"},
        folder_meaning=_DATASET,
        url="bq://{project}/{database}",
    ),
    "bigquery_mirror": SinkChoice(
        "A table in BigQuery for each of Spanner's, kept equal to it, all at one time.",
        {"kind": "mirror", "format": "bigquery"},
        folder_meaning=_DATASET,
        url="bq://{project}/{database}",
        trigger="1m",
    ),
    "postgresql": SinkChoice(
        "A table in PostgreSQL for each of Spanner's, kept equal to it, all at one time.",
        {"kind": "mirror", "format": "postgresql"},
        folder_meaning="The database, which has to be there. The password is that of PGPASSWORD, or"
        " of libpq's passfile.",
        url="postgresql://localhost/{database}",
    ),
    "ducklake": SinkChoice(
        "A table in a DuckLake for each of Spanner's, kept equal to it, all at one time.",
        {"kind": "mirror", "format": "ducklake"},
        "lake",
        "Where its files are, and its catalog, if that is not on a server.",
    ),
    "changelogs": SinkChoice(
        "A table for each of Spanner's, with every change in typed columns; format delta,"
        " iceberg, bigquery, postgresql or ducklake.",
        {"kind": "changelogs", "format": "delta"},
        "changelogs",
        "Where the tables are.",
    ),
    "mirror": SinkChoice(
        "A table for each of Spanner's, kept equal to it; format delta or iceberg.",
        {"kind": "mirror", "format": "delta"},
        "mirrors",
        "Where the tables are.",
    ),
    "kafka": SinkChoice(
        "A message for each change; format json or avro.",
        {"kind": "kafka", "format": "json", "topic": "{table}"},
        "staging",
        _STAGING,
        needs_servers=True,
    ),
    "pubsub": SinkChoice(
        "A message of Google's Pub/Sub for each change, at least once; format json or avro.",
        {"kind": "pubsub", "format": "json", "topic": "spanner-{table}"},
        "staging",
        _STAGING,
    ),
    "spark": SinkChoice(
        "Any format that Spark can write, at least once; console prints to the terminal.",
        {"kind": "spark", "format": "console"},
        "staging",
        _STAGING,
    ),
}


@dataclass(frozen=True, slots=True)
class NewPipeline:
    """The values of a new settings file.

    Attributes:
        name: the pipeline's.
        source: the change stream, or the table of Bigtable's.
        source_values: more keys of the section source, with their values.
        stream_text: the properties of the change stream, for people.
        tables: full names of the tables that it watches.
        sink: a key of SINKS.
        path: the folder or URL below which everything is written.
        servers: Kafka's, if the sink needs them.
        port: of the page.
    """

    name: str
    source: ChangeStream | BigtableTable
    source_values: Mapping[str, str]
    stream_text: str
    tables: Sequence[str]
    sink: str
    path: str
    servers: str = ""
    port: int = 8080


@dataclass(frozen=True, slots=True)
class _Entry:
    key: tuple[str, ...]
    value: Any
    comment: str = ""


def settings_text(pipeline: NewPipeline, *, file_name: str) -> str:
    """Return the text of a settings file.

    Args:
        pipeline: its values.
        file_name: as commands are to name the file.
    """
    file = _printable(shlex.quote(file_name))
    lines = [
        "# The settings of a Slackwater pipeline; docs/settings.md lists every key.",
        f"#   slackwater check -c {file}   tries everything and writes nothing",
        f"#   slackwater run -c {file}     runs it",
    ]
    for section, entries in groupby(_entries(pipeline), key=lambda entry: entry.key[:-1]):
        lines += ["", *(f"{name}:" for name in section)]
        indent = "  " * len(section)
        for entry in entries:
            lines += _comment(entry.comment, indent)
            lines += _yaml_lines(entry.key[-1], entry.value, indent)
    return "\n".join(lines) + "\n"


def _entries(pipeline: NewPipeline) -> Iterator[_Entry]:
    source, sink = pipeline.source, SINKS[pipeline.sink]
    path = pipeline.path.rstrip("/")
    yield _Entry(
        ("pipeline",),
        pipeline.name,
        "The pipeline's name in the metadata store, the log and the metrics. Do not change it:"
        " another name is another pipeline.",
    )
    yield from _source_entries(pipeline)
    for name, value in pipeline.source_values.items():
        yield _Entry(("source", name), value)
    yield _Entry(
        ("source", "start"),
        "now",
        "Where a new pipeline starts: now, earliest, or a time such as 2026-01-31T09:00:00Z.",
    )
    if sink.trigger:
        yield _Entry(
            ("epoch", "trigger"),
            sink.trigger,
            "From one epoch's start to the next one's: each is a transaction, which costs.",
        )
    # SQLite needs a file of this machine.
    folder = pipeline.name if "://" in path else path
    stream = source if isinstance(source, ChangeStream) else None
    values = sink_values(pipeline.sink, path, pipeline.servers, stream, folder)
    comments = _sink_comments(sink)
    for name, value in values.items():
        yield _Entry(("sink", name), value, comments[name])
    yield _Entry(
        ("state", "url"),
        f"sqlite:///{_below(folder, 'state.db')}",
        "The metadata store. SQLite is for one machine; with several use PostgreSQL or Spanner.",
    )
    yield _Entry(
        ("http", "listen"),
        f"127.0.0.1:{pipeline.port}",
        "The page, its API, the metrics and the probes. Remove both lines to switch them off.",
    )


def _source_entries(pipeline: NewPipeline) -> Iterator[_Entry]:
    """Yield the keys that name the source."""
    source = pipeline.source
    if isinstance(source, BigtableTable):
        yield _Entry(("source", "kind"), "bigtable")
        yield _Entry(("source", "project"), source.project)
        yield _Entry(("source", "instance"), source.instance)
        text = f"The table: its change stream is {pipeline.stream_text}."
        yield _Entry(("source", "table"), source.table, text)
        return
    yield _Entry(("source", "project"), source.project, "The database.")
    yield _Entry(("source", "instance"), source.instance)
    yield _Entry(("source", "database"), source.database)
    yield _Entry(
        ("source", "change_stream"),
        source.change_stream,
        f"The change stream: {pipeline.stream_text}. It watches {_listed(pipeline.tables)}.",
    )


def sink_values(
    sink: str, path: str, servers: str, source: ChangeStream | None = None, folder: str = "."
) -> dict[str, Any]:
    """Return the section sink.

    Args:
        sink: a key of SINKS.
        path: the folder or URL below which everything is written.
        servers: Kafka's, if the sink needs them.
        source: after which a database is named; None for any name.
        folder: of this machine, for what can't be in an object store.
    """
    choice = SINKS[sink]
    names = {"project": "project", "database": "database"}
    if source is not None:
        # A dataset's name has no dash.
        names = {"project": source.project, "database": source.database.replace("-", "_")}
    values = {
        **choice.keys,
        **({"options": {"kafka.bootstrap.servers": servers}} if choice.needs_servers else {}),
        "path": choice.url.format_map(names) or _below(path, choice.folder),
    }
    if choice.keys["kind"] == "pubsub":
        values["project"] = names["project"]
    if choice.keys["format"] == DUCKLAKE and is_object_store(path):
        values["catalog"] = f"sqlite:///{_below(folder, 'catalog.sqlite')}"
    without_checkpoint = _parsed(values)
    if without_checkpoint is not None and without_checkpoint.has_expendable_checkpoint:
        return values
    return {**values, "checkpoint": _below(path, "checkpoint")}


def _parsed(values: Mapping[str, Any]) -> SinkSettings | None:
    """Return the settings of a sink; None if they are not complete, or wrong."""
    try:
        parsed: SinkSettings = parse_sink_settings(values)
    except ValidationError:
        return None
    return parsed


def _below(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}"


def _sink_comments(choice: SinkChoice) -> dict[str, str]:
    return {
        "kind": choice.meaning,
        "format": "Its jars are fetched at the first start." if choice.needs_servers else "",
        "project": "The project of the topics, which have to be there.",
        "topic": "{table} stands for the table's full name.",
        "options": "Options of Kafka's client.",
        "path": choice.folder_meaning,
        "catalog": "The lake's catalog, which its files need. In a container, or with readers on"
        " other machines, use PostgreSQL.",
        "checkpoint": "Spark's checkpoint, of this pipeline alone. It and what was written belong"
        " together.",
    }


def _listed(tables: Sequence[str]) -> str:
    names = ", ".join(tables[:_TABLES_MAX]) or "no table yet"
    more = len(tables) - _TABLES_MAX
    return f"{names} and {more} more tables" if more > 0 else names


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(_printable(text), _WIDTH - len(indent) - 2)
    return [f"{indent}# {line}" for line in lines]


def _printable(text: str) -> str:
    # No name may end the comment: YAML has more line breaks than Python's textwrap.
    return "".join(mark if mark.isprintable() else " " for mark in text)


def _yaml_lines(key: str, value: Any, indent: str) -> list[str]:
    text = yaml.safe_dump({key: value}, default_flow_style=False, width=10**9)
    return textwrap.indent(text, indent).splitlines()
