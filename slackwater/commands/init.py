"""The writing of a settings file for a change stream and a sink: `slackwater init`."""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from slackwater.config.new_file import SINKS, NewPipeline, settings_text, sink_values
from slackwater.config.settings import Http
from slackwater.config.source_values import source_values
from slackwater.errors import HttpError, NoChangeStreamError, SettingsError
from slackwater.monitoring.http_socket import listen
from slackwater.pipeline.spark.sink_needs import all_jars
from slackwater.printing import in_one_line
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.change_stream_info import (
    parse_retention_ns,
    read_change_streams,
    require_supported,
    retention_text,
)
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.quoting import identifier
from slackwater.scheduler.notebook_options import checked
from slackwater.scheduler.source_settings import (
    BigtableSettings,
    StreamSettings,
    require_pipeline_name,
)
from slackwater.setting_values import reason_of
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.sinks.registry import parse_sink_settings
from slackwater.spark_sink.sql.rebuild_view import DEFAULT_VALUE_CAPTURE_TYPE

# Asks for a value: its name, the values that are possible (none: any), the value to suggest.
Prompt = Callable[[str, Sequence[str], str | None], str]

_NAMES: Final = ("project", "instance", "database")
_OF_BIGTABLE: Final = ("parquet", "json", "orc", "delta", "iceberg")
_DEFAULT_SINK: Final = "parquet"
# Another pipeline of this machine may have the first one.
_PORTS: Final = range(8080, 8100)
_DEFAULT_SERVERS: Final = "localhost:9092"
# Any valid name: before a stream is chosen, the connection asks for all of them.
_NO_STREAM: Final = "_"


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of `slackwater init`.

    Attributes:
        file: the file to write.
        names: project, instance, database and change_stream, or table for one of Bigtable's; those
            that were named.
        source: more of the section source, each as KEY=VALUE.
        sink: a key of SINKS; None to ask, or for parquet.
        pipeline: the pipeline's name; None for one like the change stream's.
        path: the folder or URL below which everything is written; None for out/PIPELINE.
        servers: Kafka's; None to ask.
        force: overwrite the file.
    """

    file: Path
    names: Mapping[str, str]
    source: Sequence[str]
    sink: str | None
    pipeline: str | None
    path: str | None
    servers: str | None
    force: bool


def init(
    options: InitOptions, prompt: Prompt | None, environ: Mapping[str, str] = os.environ
) -> NewPipeline:
    """Ask Spanner for its change streams, or Bigtable for a table, and write a settings file.

    Args:
        options: those of the command line.
        prompt: asks the user for values that the options lack; None without a terminal.
        environ: may name an emulator.

    Raises:
        SettingsError: an option is missing or wrong, the sink does not run at the path, or the
            file is there already.
        OptionError, EndpointError: a value for the source is wrong.
        NoChangeStreamError: the database has no change stream, or not the named one.
        SinkError: the sink can't use the change stream's value capture type.
        ReaderError: Spanner or Bigtable can't be read, or the table has no change stream.
    """
    _require_valid(options)
    sink = _sink(options, prompt)
    _require_places(sink, options.path, environ)
    if "table" in options.names:
        pipeline = _of_bigtable(options, sink, prompt, environ)
        _write(options, settings_text(pipeline, file_name=str(options.file)))
        return pipeline
    names = _names(options.names, prompt)
    servers = _servers(sink, options.servers, prompt)
    more = source_values(options.source)
    stream_name = options.names.get("change_stream", _NO_STREAM)
    asked = checked(StreamSettings, {**more, **names, "change_stream": stream_name})
    any_stream = asked.address(environ)
    with closing(Connection(any_stream)) as connection:
        dialect, streams = read_change_streams(connection)
    name = _stream_name(any_stream, dialect, list(streams), options, sink, prompt)
    require_supported(name, streams[name])
    stream = replace(any_stream, change_stream=name)
    with closing(Connection(stream)) as connection:
        tables = [table.name for table in watched_tables(connection, dialect)]
    pipeline_name = options.pipeline or _name_like(name)
    pipeline = NewPipeline(
        pipeline_name,
        stream,
        more,
        _stream_text(streams[name]),
        tables,
        sink,
        options.path or f"out/{pipeline_name}",
        servers,
        _free_port(),
    )
    _require_capture(pipeline, streams[name])
    _write(options, settings_text(pipeline, file_name=str(options.file)))
    return pipeline


def _of_bigtable(
    options: InitOptions, sink: str, prompt: Prompt | None, environ: Mapping[str, str]
) -> NewPipeline:
    """Return the values of a new file for a table of Bigtable's."""
    from slackwater.reader.bigtable.service import BigtableService
    from slackwater.scheduler.bigtable.bigtable_source import BigtableSource

    if sink not in _OF_BIGTABLE:
        raise SettingsError(
            f"--sink {sink} does not go with --table.", f"Use one of {', '.join(_OF_BIGTABLE)}"
        )
    wrong = [name for name in ("database", "change_stream") if name in options.names]
    if wrong:
        raise SettingsError(
            f"--table and --{wrong[0].replace('_', '-')} do not go together.",
            "A table is Bigtable's, a database Spanner's",
        )
    names = {**_names(options.names, prompt, _NAMES[:2]), "table": options.names["table"]}
    more = source_values(options.source, BigtableSettings)
    table = checked(BigtableSettings, {**more, **names}).address(environ)
    with closing(BigtableService(table)) as service:
        retention = retention_text(BigtableSource(service).retention_ns())
    name = options.pipeline or _name_like(table.table)
    path, port = options.path or f"out/{name}", _free_port()
    return NewPipeline(name, table, more, f"kept {retention}", (), sink, path, port=port)


def prompt_at_terminal(name: str, values: Sequence[str], default: str | None) -> str:
    """Ask the user at the terminal; the questions go to standard error."""
    import typer

    question = f"{name} ({', '.join(values)})" if values else name
    while True:
        answer = str(typer.prompt(in_one_line(question), default=default, err=True))
        if not values or answer in values:
            return answer


def create_statement(dialect: Dialect, name: str, sink: str) -> str:
    """Return the statement that creates a change stream of all tables, fit for a sink.

    Args:
        dialect: the database's.
        name: the stream's.
        sink: a key of SINKS.
    """
    options = {"retention_period": "7d"}
    if _refusal(sink, DEFAULT_VALUE_CAPTURE_TYPE) is not None:
        options["value_capture_type"] = "NEW_ROW"
    listed = ", ".join(f"{option} = '{value}'" for option, value in options.items())
    word = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    return f"CREATE CHANGE STREAM {identifier(dialect, name)} FOR ALL {word} ({listed})"


def _free_port() -> int:
    """Return the first free port of the page's; if there is none, the first of all."""
    for port in _PORTS:
        try:
            listen(Http(listen=f"127.0.0.1:{port}")).close()
        except HttpError:
            continue
        return port
    return _PORTS[0]


def _require_capture(pipeline: NewPipeline, stream_options: Mapping[str, str]) -> None:
    """Check that a sink can use a change stream's value capture type.

    Raises:
        SinkError: it can't.
    """
    capture = stream_options.get("value_capture_type", DEFAULT_VALUE_CAPTURE_TYPE)
    refusal = _refusal(pipeline.sink, capture)
    if refusal is not None:
        raise refusal


def _refusal(sink: str, capture_type: str) -> SinkError | None:
    """Return why a sink refuses a value capture type; None if it takes it."""
    values = sink_values(sink, "out", _DEFAULT_SERVERS)
    try:
        parse_sink_settings(values).check_capture_type(capture_type)
    except SinkError as error:
        return error
    return None


def _require_places(sink: str, path: str | None, environ: Mapping[str, str]) -> None:
    """Check that the sink runs below a folder or URL, with the settings that the file will have.

    Raises:
        SettingsError: it does not; the hint names those that do.
    """
    if path is None or (refusal := _refusal_of_places(sink, path, environ)) is None:
        return
    others = [name for name in SINKS if _refusal_of_places(name, path, environ) is None]
    hint = f"Sinks that run there: {', '.join(others)}" if others else "No sink runs there"
    raise SettingsError(
        f"--sink {sink} --path {path}: {refusal}", f"{hint}. docs/object-stores.md has the rest"
    )


def _refusal_of_places(sink: str, path: str, environ: Mapping[str, str]) -> str | None:
    """Return why a sink does not run below a folder or URL; None if it does."""
    try:
        settings = parse_sink_settings(sink_values(sink, path, _DEFAULT_SERVERS))
        settings.check_places({}, all_jars(settings.spark_needs, {}, None, environ))
    except ValidationError as error:
        return f"{reason_of(error.errors()[0]).rstrip('.')}."
    except SinkError as error:
        return error.message
    return None


def _require_valid(options: InitOptions) -> None:
    if options.pipeline is not None:
        try:
            require_pipeline_name(options.pipeline)
        except ValidationError as error:
            raise SettingsError(f"--pipeline: {reason_of(error.errors()[0])}.") from error
    if options.file.exists() and not options.force:
        raise SettingsError(
            f"{options.file} is there already.", "Name another file with -c, or use --force"
        )
    folder = options.file.absolute().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise SettingsError(f"{options.file} can't be written: {folder} is not a writable folder.")


def _write(options: InitOptions, text: str) -> None:
    try:
        # Another process may have made the file meanwhile.
        with options.file.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(f"{options.file} can't be written: {error.strerror}.") from error


def _sink(options: InitOptions, prompt: Prompt | None) -> str:
    sink = options.sink
    if sink is None:
        sink = _DEFAULT_SINK if prompt is None else prompt("Sink", list(SINKS), _DEFAULT_SINK)
    if sink not in SINKS:
        raise SettingsError(f"--sink {sink} is not one of {', '.join(SINKS)}.")
    if options.servers is not None and not SINKS[sink].needs_servers:
        raise SettingsError("--kafka-servers goes with --sink kafka.")
    return sink


def _names(
    names: Mapping[str, str], prompt: Prompt | None, needed: Sequence[str] = _NAMES
) -> dict[str, str]:
    missing = [name for name in needed if name not in names]
    if missing and prompt is None:
        flags = [f"--{name}" for name in missing]
        raise SettingsError(f"missing: {', '.join(flags)}.")
    asked = {name: prompt(name.capitalize(), (), None) for name in missing if prompt is not None}
    return {name: names.get(name) or asked[name] for name in needed}


def _servers(sink: str, servers: str | None, prompt: Prompt | None) -> str:
    if not SINKS[sink].needs_servers or servers:
        return servers or ""
    if prompt is None:
        raise SettingsError("missing: --kafka-servers HOST:PORT,...", "It names Kafka's brokers")
    return prompt("Kafka's brokers, HOST:PORT,...", (), _DEFAULT_SERVERS)


def _stream_name(
    any_stream: ChangeStream,
    dialect: Dialect,
    streams: Sequence[str],
    options: InitOptions,
    sink: str,
    prompt: Prompt | None,
) -> str:
    """Return the name of the change stream to read: named, the only one, or asked for."""
    name = options.names.get("change_stream")
    if name is not None and name in streams:
        return name
    if name is not None or not streams:
        default = "everything" if dialect is Dialect.POSTGRESQL else "Everything"
        create = f"Create it:\n\n{create_statement(dialect, name or default, sink)}\n"
        near = difflib.get_close_matches(name or "", streams, n=1)
        others = f"It has: {', '.join(sorted(streams))}. " if streams else ""
        hint = f"Did you mean {near[0]!r}? " if near else others
        missing = f"change stream {name!r}" if name else "change stream"
        raise NoChangeStreamError(f"{any_stream.database_path} has no {missing}.", hint + create)
    if len(streams) == 1:
        return streams[0]
    if prompt is None:
        raise SettingsError(
            f"{any_stream.database_path} has several change streams.",
            f"Name one with --change-stream: {', '.join(sorted(streams))}",
        )
    return prompt("Change stream", sorted(streams), None)


def _name_like(stream: str) -> str:
    """Return a valid name of a pipeline that is like its change stream's."""
    # As in PIPELINE_NAME; a stream's name may be longer and, quoted, have other characters.
    plain = re.sub(r"[^a-z0-9_-]+", "-", stream.lower())
    return plain.lstrip("_-")[:63] or "changes"


def _stream_text(stream_options: Mapping[str, str]) -> str:
    retention = retention_text(parse_retention_ns(stream_options.get("retention_period")))
    capture = stream_options.get("value_capture_type", DEFAULT_VALUE_CAPTURE_TYPE)
    return f"value capture type {capture}, kept {retention}"
