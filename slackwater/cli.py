"""The command line: parses the options, prints results, turns errors into messages and exit codes.

Exit code 2: the user has to change something. Exit code 1: something else failed.
"""

import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from slackwater.commands import options
from slackwater.commands.error_texts import exit_code, text_of
from slackwater.commands.options import CutFormat, PartitionFormat
from slackwater.config.load import load_pipelines, load_settings
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.extras import extra_of, missing_error
from slackwater.garbage import collect_seldom
from slackwater.log_lines import write_utf8
from slackwater.monitoring import log
from slackwater.pipeline.recovery import Recovery, settings_options, with_options
from slackwater.printing import show
from slackwater.secrecy import masked
from slackwater.state.models import DesiredState
from slackwater.tail.line_format import LineFormat
from slackwater.timestamp import ms_to_seconds, parse_duration_ms

app = typer.Typer(
    help="Deliver every change of Cloud Spanner or Bigtable exactly once.",
    no_args_is_help=True,
    # Boxes leave no room for the help at 80 columns.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(debug: options.Debug = False, _version: options.Version = False) -> None:
    log.configure(level="debug" if debug else "info")
    _Debug.on = debug


# gRPC's fork handlers can prevent Spark's JVM from starting while channels are open. Our forks
# become other programs at once and don't need them. Must be set before gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


class _Debug:
    on = False


class _Named:
    # The options by which the command names its settings, for the commands that it prints.
    options = ""


def _load(config: Path | None, pipeline: str | None) -> tuple[Settings, ...]:
    _Named.options = settings_options(_file_option(config), pipeline)
    return load_pipelines(config, pipeline=pipeline)


def _load_one(config: Path | None, pipeline: str | None) -> Settings:
    _Named.options = settings_options(_file_option(config), pipeline)
    return load_settings(config, pipeline=pipeline)


def _file_option(config: Path | None) -> str:
    return "" if config is None else f" -c {shlex.quote(str(config))}"


@app.command()
def init(
    config: options.NewFile = Path("slackwater.yaml"),
    project: options.SourceOption = None,
    instance: options.SourceOption = None,
    database: options.SourceOption = None,
    change_stream: options.SourceOption = None,
    table: options.BigtableName = None,
    source: options.SourceValues = None,
    sink: options.SinkName = None,
    path: options.NewPath = None,
    pipeline: options.NewName = None,
    kafka_servers: options.KafkaServers = None,
    force: options.Force = False,
    check: options.WithCheck = False,
) -> None:
    """Write a settings file for a change stream."""
    from slackwater.commands import init as commands

    names = _present(
        project=project,
        instance=instance,
        database=database,
        change_stream=change_stream,
        table=table,
    )
    init_options = commands.InitOptions(
        config, names, source or (), sink, pipeline, path, kafka_servers, force
    )
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    made = commands.init(init_options, commands.prompt_at_terminal if is_terminal else None)
    show(f"{config}: {made.source.path}, {made.stream_text}")
    if check:
        from slackwater.commands.check import print_checks

        raise typer.Exit(print_checks(load_pipelines(config)))
    file_name = shlex.quote(str(config))
    show(f"Next: slackwater check -c {file_name}, then slackwater run -c {file_name}")


@app.command()
def run(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    until_caught_up: options.UntilCaughtUp = False,
    from_watermark: options.FromWatermark = None,
    skip_to: options.SkipTo = None,
) -> None:
    """Run the file's pipelines, until SIGTERM or Ctrl-C."""
    from slackwater.commands import run as commands

    pipelines = _load(config, pipeline)
    if from_watermark is not None or skip_to is not None:
        pipelines = (_load_one(config, pipeline),)
    settings = pipelines[0].log
    log.configure(level="debug" if _Debug.on else settings.level, log_format=settings.format)
    commands.run(
        pipelines,
        until_caught_up=until_caught_up,
        recovery=Recovery(from_watermark, skip_to),
        file_option=_file_option(config),
        names_pipeline=pipeline is not None or len(pipelines) > 1,
    )


def _request_command(desired: DesiredState) -> Callable[..., None]:
    def request(
        config: options.ConfigFile = None,
        pipeline: options.PipelineName = None,
        wait: options.Wait = "60s",
    ) -> None:
        _request(config, pipeline, wait, desired)

    return request


@app.command()
def resume(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    wait: options.Wait = "60s",
    from_watermark: options.FromWatermark = None,
    skip_to: options.SkipTo = None,
) -> None:
    """Continue after a pause, or after a failure was fixed."""
    _request(config, pipeline, wait, DesiredState.RUNNING, from_watermark, skip_to)


def _request(
    config: Path | None,
    pipeline: str | None,
    wait: str,
    desired: DesiredState,
    from_watermark: str | None = None,
    skip_to: str | None = None,
) -> None:
    from slackwater.commands import request as commands

    seconds_max = _seconds(wait, "--wait")
    settings = _load_one(config, pipeline)
    recovery = Recovery(from_watermark, skip_to)
    for line in commands.request(settings, desired, seconds_max=seconds_max, recovery=recovery):
        show(with_options(line, _Named.options))


def _seconds(value: str, option: str) -> float:
    """Return the seconds of an option's duration; a bare number, as in kubectl, means seconds."""
    try:
        return ms_to_seconds(parse_duration_ms(f"{value}s" if value.isdecimal() else value))
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from error


for _desired, _verb, _help in (
    (DesiredState.PAUSED, "pause", "Finish the epoch and start no other until `resume`."),
    (DesiredState.DRAINING, "drain", "Finish the epoch and end the process that runs it."),
    (DesiredState.STOPPED, "stop", "End at once; the next start replays the running epoch."),
):
    app.command(_verb, help=_help)(_request_command(_desired))


@app.command()
def check(config: options.ConfigFile = None, pipeline: options.PipelineName = None) -> None:
    """Connect to all that the pipeline needs; say what is wrong."""
    from slackwater.commands.check import print_checks

    raise typer.Exit(print_checks(_load(config, pipeline)))


@app.command()
def status(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    as_json: options.Json = False,
) -> None:
    """Say whether the pipeline keeps up; show its state and lag."""
    from slackwater.commands import status as inspect

    statuses = inspect.statuses(_load(config, pipeline))
    if as_json:
        show(json.dumps(statuses if len(statuses) > 1 else statuses[0], indent=2))
        return
    for line in inspect.lines(statuses):
        show(line)


@app.command()
def partitions(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    partition_format: options.Partitions = PartitionFormat.TABLE,
) -> None:
    """List the partitions: running, waiting or recently finished."""
    from slackwater.commands.partition_lines import partition_lines

    for line in partition_lines(_load_one(config, pipeline), partition_format):
        show(line)


@app.command()
def schema() -> None:
    """Print the JSON schema of the settings file, for editors."""
    from slackwater.config.json_schema import settings_schema

    show(json.dumps(settings_schema(), indent=2))


@app.command(name="tail")
def tail_(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    project: options.SourceName = None,
    instance: options.SourceName = None,
    database: options.SourceName = None,
    change_stream: options.SourceName = None,
    source: options.SourceValues = None,
    tables: options.TailTables = None,
    exclude_tables: options.ExcludeTables = None,
    mod_types: options.ModTypes = None,
    transaction_tags: options.TransactionTags = None,
    exclude_transaction_tags: options.ExcludeTransactionTags = None,
    system_transactions: options.SystemTransactions = None,
    when_changed: options.WhenChanged = None,
    columns: options.Columns = None,
    exclude_columns: options.ExcludeColumns = None,
    line_format: options.Lines = LineFormat.TEXT,
    envelope: options.LineEnvelope = "wrapped",
    updated: options.Updated = False,
    mvcc_timestamp: options.MvccTimestamp = False,
    enriched_properties: options.EnrichedProperties = None,
    encode_json_value_null_as_object: options.EncodeJsonValueNullAsObject = False,
    cursor: options.Cursor = None,
    end_time: options.EndTime = None,
    initial_scan: options.InitialScan = False,
    initial_scan_only: options.InitialScanOnly = False,
    resolved: options.Resolved = None,
) -> None:
    """Write changes to standard output in commit order.

    No Spark is started, and nothing is stored. It goes on until it is stopped.
    """
    values = _present(**locals())
    from slackwater.tail import options as changefeed

    changefeed.tail(changefeed.from_command_line(values))


def _present(**values: Any) -> dict[str, Any]:
    """Return the options that were used, lists as tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None and value != []
    }


sql = typer.Typer(
    help="SQL for reading what a pipeline has written.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(sql, name="sql")


@sql.command()
def view(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    tables: options.Tables = None,
) -> None:
    """Print views over the changelog, one for each table.

    In Spark SQL they rebuild the current rows; in BigQuery they have Datastream's columns.
    """
    from slackwater.commands.sql_views import views

    for statement in views(_load_one(config, pipeline), tables or ()):
        show(statement)


@app.command()
def verify(
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    tables: options.Tables = None,
    as_json: options.Json = False,
    repair: options.Repair = False,
    continuous: options.Continuous = False,
    every: options.Every = "1m",
) -> None:
    """Compare each mirror with its table.

    The table is read as of the low watermark that the mirror states.
    """
    every_s = _seconds(every, "--every")
    settings = _load_one(config, pipeline)
    if continuous:
        from slackwater.commands.continuous_verification import print_findings

        print_findings(settings, tables or (), as_json=as_json, repair=repair, every_s=every_s)
        return
    from slackwater.commands.verify import print_results

    if not print_results(settings, tables or (), as_json=as_json, repair=repair):
        raise typer.Exit(1)


@app.command()
def rescan(
    tables: options.RescanTables,
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    stop: options.StopRescan = False,
) -> None:
    """Have the running pipeline read tables again.

    The changes go on meanwhile.
    """
    from slackwater.commands import rescan as command

    settings = _load_one(config, pipeline)
    for line in (command.stop if stop else command.rescan)(settings, tables):
        show(with_options(line, _Named.options))


@app.command()
def as_of(
    time: options.Time,
    config: options.ConfigFile = None,
    pipeline: options.PipelineName = None,
    tables: options.Tables = None,
    cut_format: options.Cuts = CutFormat.TEXT,
    file: options.FollowedFile = None,
    every: options.FollowEvery = "10s",
) -> None:
    """Print each mirror's version as of one time."""
    from slackwater.commands import as_of as command

    every_s = _seconds(every, "--every")
    settings = _load_one(config, pipeline)
    if file is None:
        show(command.text_of(command.as_of(settings, time, tables or ()), cut_format))
        return
    command.follow(settings, time, tables or (), file, cut_format, every_s)


@app.command()
def jars(folder: options.JarFolder, formats: options.JarFormats = None) -> None:
    """Fetch the jars of sinks and object stores into a folder.

    Pipelines without a network name it as spark.jars.
    """
    from slackwater.commands.jars import FORMATS, fetch

    for name in formats or ():
        if name not in FORMATS:
            raise typer.BadParameter(
                f"{name!r} is not one of {', '.join(FORMATS)}.", param_hint="FORMAT"
            )
    for jar in fetch(folder, tuple(formats or FORMATS)):
        show(jar)


@app.command()
def class_archive(file: options.ArchiveFile) -> None:
    """Make an archive of classes, with which Spark starts sooner."""
    from slackwater.commands.class_archive import make

    make(file)


@app.command()
def demo(
    directory: options.DemoFolder = Path("out/demo"), seconds: options.DemoSeconds = 30
) -> None:
    """Show it all on the emulator: churn, a kill, the comparison."""
    from slackwater.demo.show import show

    if not show(directory, seconds=seconds):
        raise typer.Exit(1)


def main() -> None:
    """Run the program and exit with its code."""
    collect_seldom()
    write_utf8()
    try:
        code = app(prog_name="slackwater", standalone_mode=False)
        # Some versions of typer return the code of an Exit, others raise it.
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the one place where errors become messages
        # A usage error of click, which some versions of typer bundle under another name.
        if (show_usage := getattr(error, "show", None)) is not None:
            show_usage()
            sys.exit(2)
        if (extra := extra_of(error)) is not None:
            error = missing_error([extra])
        if _Debug.on:
            show(masked(traceback.format_exc()), to_errors=True)
        text = with_options(text_of(error), _Named.options)
        show(f"slackwater: {text}", to_errors=True)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
