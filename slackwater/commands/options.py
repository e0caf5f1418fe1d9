"""The options of the command line that are long to declare or that several commands share.

Each is a type for a parameter of a command in slackwater.cli: its flags, its help, its values.
"""

from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from slackwater.config.load import DEFAULT_FILE
from slackwater.config.new_file import SINKS
from slackwater.printing import show
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.filters.record_filter import ModType
from slackwater.tail.line_format import LineFormat


def _show_version(is_asked: bool) -> None:
    if is_asked:
        show(f"slackwater {version('slackwater')}")
        raise typer.Exit


Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help=f"The settings file; by default {DEFAULT_FILE}, if it is there."
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Option("--pipeline", help="Name of the pipeline, if the file has more than one."),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="Only tables that match this glob; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class PartitionFormat(StrEnum):
    """The output of `partitions`: a table for people, JSON, or a graph in Graphviz's language."""

    TABLE = "table"
    JSON = "json"
    DOT = "dot"


Partitions = Annotated[PartitionFormat, typer.Option("--format", help="How to print them.")]

# init
NewFile = Annotated[
    Path, typer.Option("-c", "--config", help="The settings file to write.", dir_okay=False)
]
SinkName = Annotated[
    str | None,
    typer.Option("--sink", help=f"What to make of the changes: {', '.join(SINKS)}."),
]
NewName = Annotated[
    str | None, typer.Option("--pipeline", help="The pipeline's name; by default the stream's.")
]
NewPath = Annotated[
    str | None,
    typer.Option(
        "--path", help="The folder or URL of everything that is written; by default out/PIPELINE."
    ),
]
KafkaServers = Annotated[
    str | None, typer.Option(help="For --sink kafka: the brokers, HOST:PORT,...")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the settings file.")]
WithCheck = Annotated[bool, typer.Option("--check", help="Then check it, as `check` does.")]
BigtableName = Annotated[
    str | None, typer.Option("--table", help="A table of Bigtable's, in place of a database.")
]
SourceOption = Annotated[str | None, typer.Option(help="Asked for on a terminal, if it is needed.")]

# run
UntilCaughtUp = Annotated[
    bool,
    typer.Option(
        "--until-caught-up",
        help="Stop after the epoch that reaches the time of the start, and when rescans are done.",
    ),
]
FromWatermark = Annotated[
    str | None,
    typer.Option(
        help="If the checkpoint is lost, or does not agree with the output: start a new one from"
        " this low watermark; 'last' or a time."
    ),
]
SkipTo = Annotated[
    str | None,
    typer.Option(
        help="If records are lost to the retention period: continue from here and record the gap;"
        " 'earliest' or a time."
    ),
]

# pause, resume, drain, stop
Wait = Annotated[
    str, typer.Option(help="How long to wait for the pipeline to comply; 0 not to wait.")
]

# rescan, verify
RescanTables = Annotated[
    list[str], typer.Option("--table", help="Tables that match this glob; repeatable.")
]
StopRescan = Annotated[bool, typer.Option("--stop", help="Stop reading them again.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="Have mirrors that differ corrected, by a rescan.")
]
Continuous = Annotated[
    bool,
    typer.Option("--continuous", help="Compare slice by slice, round and round, until stopped."),
]
Every = Annotated[
    str, typer.Option(help="With --continuous: begin a round at most so often, such as 10m.")
]

# tail
SourceValues = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="KEY=VALUE", help="Of the section source, as endpoint; repeatable."
    ),
]
SourceName = Annotated[str | None, typer.Option(help="Overrides the settings file.")]
TailTables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help="Only tables that match this glob; repeatable. Without a database, Bigtable's table.",
    ),
]
ExcludeTables = Annotated[
    list[str] | None,
    typer.Option("--exclude-table", help="No tables that match this glob; repeatable."),
]
ModTypes = Annotated[
    list[ModType] | None, typer.Option("--mod-type", help="Only this kind of change; repeatable.")
]
TransactionTags = Annotated[
    list[str] | None,
    typer.Option(
        "--transaction-tag", help="Only transactions whose tag matches this glob; repeatable."
    ),
]
ExcludeTransactionTags = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-transaction-tag",
        help="No transactions whose tag matches this glob; repeatable.",
    ),
]
SystemTransactions = Annotated[
    bool | None,
    typer.Option(
        help="Include changes made by Spanner itself, such as those of a row deletion policy."
    ),
]
WhenChanged = Annotated[
    list[str] | None,
    typer.Option(
        "--when-changed",
        help="Only records that change a column whose Table.Column matches this glob; repeatable.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Only columns whose Table.Column matches this glob; repeatable."),
]
ExcludeColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-column", help="No columns whose Table.Column matches this glob; repeatable."
    ),
]
Lines = Annotated[LineFormat, typer.Option("--format", help="How to write each line.")]
LineEnvelope = Annotated[
    str,
    typer.Option(
        metavar="|".join(envelopes()), help="What a change looks like; see docs/envelopes.md."
    ),
]
Updated = Annotated[bool, typer.Option("--updated", help="Add the commit timestamp as 'updated'.")]
MvccTimestamp = Annotated[
    bool,
    typer.Option("--mvcc-timestamp", help="Add the commit timestamp as 'mvcc_timestamp'."),
]
EnrichedProperties = Annotated[
    str | None,
    typer.Option(help="What the envelope enriched adds: source, schema or source,schema."),
]
EncodeJsonValueNullAsObject = Annotated[
    bool,
    typer.Option(
        "--encode-json-value-null-as-object", help="Write a JSON null as an object, not as null."
    ),
]
Cursor = Annotated[str | None, typer.Option(help="Start after this time; by default, now.")]
EndTime = Annotated[str | None, typer.Option(help="Write changes up to this time, then exit.")]
InitialScan = Annotated[
    bool, typer.Option(help="First write the rows as of the cursor, or as of now.")
]
InitialScanOnly = Annotated[
    bool, typer.Option("--initial-scan-only", help="Write only these rows, then exit.")
]
Resolved = Annotated[
    str | None,
    typer.Option(
        help="Write lines that say up to which time nothing is missing, at least this far apart:"
        " 10s; 0 for one per epoch."
    ),
]


# as-of
class CutFormat(StrEnum):
    """The output of `as-of`: lines for people, statements for Spark SQL, or JSON."""

    TEXT = "text"
    SQL = "sql"
    JSON = "json"


Time = Annotated[
    str,
    typer.Argument(metavar="TIME", help="Such as 2026-01-31T09:00:00Z; 'last' for the latest."),
]
Cuts = Annotated[CutFormat, typer.Option("--format", help="How to print the versions.")]
FollowedFile = Annotated[
    Path | None,
    typer.Option(
        "--follow",
        metavar="<file>",
        help="Write them there instead, again and again, until stopped. With TIME 'last'.",
        dir_okay=False,
    ),
]
FollowEvery = Annotated[
    str, typer.Option("--every", help="With --follow: look at the mirrors so often, such as 1m.")
]

# jars, class-archive
JarFolder = Annotated[
    Path,
    typer.Argument(help="Where to put the jars.", file_okay=False, writable=True),
]
JarFormats = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FORMAT", help="delta, iceberg, kafka, s3a, gs or abfss; by default, all of them."
    ),
]
ArchiveFile = Annotated[
    Path,
    typer.Argument(help="The archive to write.", dir_okay=False, writable=True),
]

# demo
DemoFolder = Annotated[
    Path,
    typer.Option("--directory", help="Where to put the output and the drawing; emptied first."),
]
DemoSeconds = Annotated[int, typer.Option("--seconds", help="How long to write changes.", min=10)]
