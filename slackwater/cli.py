"""The command line: parses, prints, and turns errors into messages and exit codes.

Exit code 2 says that the user has to change something, 1 that the world failed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from slackwater.config.load import load_pipelines, load_settings
from slackwater.config.setting_types import parse_duration_ms
from slackwater.errors import SettingsError
from slackwater.monitoring import log
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.filters.record_filter import ModType
from slackwater.state.models import DesiredState
from slackwater.tail.line_format import LineFormat
from slackwater.timestamp import ms_to_seconds

app = typer.Typer(
    help="Every change of a Cloud Spanner database, once, in epochs that are consistent cuts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path | None, typer.Option("-c", "--config", help="The settings file, slackwater.yaml.")
]
Name = Annotated[str | None, typer.Option(help="In the place of the file's.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Only these tables; a glob, repeatable.")
]
PipelineName = Annotated[
    str | None, typer.Option("--pipeline", help="Which, where the file has several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class PartitionFormat(StrEnum):
    """How `partitions` prints."""

    TABLE = "table"
    JSON = "json"
    DOT = "dot"


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show traces of errors.")] = False,
) -> None:
    log.configure(level="debug" if debug else "info")
    _Debug.on = debug


# gRPC's handlers around fork can break the start of Spark's JVM when channels are open; what we
# fork becomes another program at once and needs none of them. Set before gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


class _Debug:
    on = False


@app.command()
def run(
    config: File = None,
    pipeline: PipelineName = None,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help="Stop after the epoch that reaches the time of the start."
        ),
    ] = False,
    from_watermark: Annotated[
        str | None,
        typer.Option(
            help="The checkpoint is lost: go on with a new one from this low watermark; last, or"
            " a time."
        ),
    ] = None,
    skip_to: Annotated[
        str | None,
        typer.Option(
            help="Records are lost to the retention period: go on from here and record the gap;"
            " earliest, or a time."
        ),
    ] = None,
) -> None:
    """Run the pipelines of the file; SIGTERM and Ctrl-C finish the epoch and exit with 0."""
    from slackwater.commands import run as commands
    from slackwater.pipeline.recovery import Recovery

    given = "" if config is None else f" -c {shlex.quote(str(config))}"
    is_one = pipeline is not None or from_watermark is not None or skip_to is not None
    found = (load_settings(config, pipeline=pipeline),) if is_one else load_pipelines(config)
    level = "debug" if _Debug.on else found[0].log.level
    log.configure(level=level, form=found[0].log.format)
    commands.run(
        found,
        until_caught_up=until_caught_up,
        recovery=Recovery(from_watermark, skip_to, f"slackwater run{given}"),
    )


def _request_command(desired: DesiredState) -> Callable[..., None]:
    def request(
        config: File = None,
        pipeline: PipelineName = None,
        wait: Annotated[
            str, typer.Option(help="How long to wait until it is so; 0 for not.")
        ] = "60s",
    ) -> None:
        from slackwater.commands import run as commands

        try:
            milliseconds = parse_duration_ms(0 if wait == "0" else wait)
        except ValueError as error:
            raise SettingsError(f"--wait: {error}") from error
        settings = load_settings(config, pipeline=pipeline)
        for told in commands.request(settings, desired, seconds_max=ms_to_seconds(milliseconds)):
            print(told)  # noqa: T201

    return request


for _desired, _verb, _help in (
    (DesiredState.PAUSED, "pause", "Finish the epoch and begin none until `resume`."),
    (DesiredState.RUNNING, "resume", "Go on after a pause, or after a failure was fixed."),
    (DesiredState.DRAINING, "drain", "Finish the epoch and end the process."),
    (DesiredState.STOPPED, "stop", "End at once; the next start replays the running epoch."),
):
    app.command(_verb, help=_help)(_request_command(_desired))


@app.command()
def check(config: File = None, pipeline: PipelineName = None) -> None:
    """Connect to everything that the pipeline needs and say what is wrong."""
    from slackwater.commands.check import checks

    worst = 0
    for found in checks(load_settings(config, pipeline=pipeline)):
        if found.problem is None:
            print(f"ok    {found.name}: {found.found}")  # noqa: T201
        else:
            worst = max(worst, _exit_code(found.problem))
            print(f"wrong {found.name}: {_text(found.problem)}")  # noqa: T201
    raise typer.Exit(worst)


@app.command()
def status(config: File = None, pipeline: PipelineName = None, as_json: Json = False) -> None:
    """Where the pipeline stands and whether it keeps up."""
    from slackwater.commands import status as inspect

    found = inspect.status(load_settings(config, pipeline=pipeline))
    if as_json:
        print(json.dumps(found, indent=2))  # noqa: T201
        return
    for name, value in _flat(found):
        print(f"{name:24} {'-' if value is None else value}")  # noqa: T201


@app.command()
def partitions(
    config: File = None,
    pipeline: PipelineName = None,
    form: Annotated[
        PartitionFormat, typer.Option("--format", help="table, json or dot.")
    ] = PartitionFormat.TABLE,
) -> None:
    """The partitions: alive, waiting for their parents, and lately finished."""
    from slackwater.commands import status as inspect
    from slackwater.monitoring.json_fields import partition_fields
    from slackwater.monitoring.lineage_graph import to_dot
    from slackwater.scheduler.lineage import states

    found, watermark_ns, stalls = inspect.partition_rows(load_settings(config, pipeline=pipeline))
    if form is PartitionFormat.DOT:
        print(to_dot(found, low_watermark_ns=watermark_ns), end="")  # noqa: T201
        return
    at = states(found, watermark_ns or 0)
    rows = [partition_fields(p, at[p.token], stalls.get(p.token, 0)) for p in found]
    if form is PartitionFormat.JSON:
        print(json.dumps(rows, indent=2))  # noqa: T201
        return
    table = Table("token", "state", "start", "end", "stalls", "parents")
    for row in rows:
        parents = ", ".join(parent[:12] for parent in row["parents"])
        table.add_row(
            row["token"][:12],
            row["state"],
            row["start_timestamp"],
            row["end_timestamp"] or "-",
            str(row["stalls"]),
            parents,
        )
    Console().print(table)


@app.command(name="tail")
def tail_(
    config: File = None,
    project: Name = None,
    instance: Name = None,
    database: Name = None,
    change_stream: Name = None,
    tables: Tables = None,
    exclude_tables: Annotated[
        list[str] | None, typer.Option("--exclude-table", help="Not these tables.")
    ] = None,
    mod_types: Annotated[
        list[ModType] | None, typer.Option("--mod-type", help="Only these kinds of change.")
    ] = None,
    transaction_tags: Annotated[
        list[str] | None, typer.Option("--transaction-tag", help="Only these tags; a glob.")
    ] = None,
    exclude_transaction_tags: Annotated[
        list[str] | None, typer.Option("--exclude-transaction-tag", help="Not these tags.")
    ] = None,
    system_transactions: Annotated[
        bool | None,
        typer.Option(help="With what Spanner changes itself, as by a row deletion policy."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Only these Table.Column; a glob.")
    ] = None,
    exclude_columns: Annotated[
        list[str] | None, typer.Option("--exclude-column", help="Not these columns.")
    ] = None,
    form: Annotated[
        LineFormat, typer.Option("--format", help="How lines are written.")
    ] = LineFormat.TEXT,
    envelope: Annotated[
        Envelope, typer.Option(help="The form of a change; see docs/envelopes.md.")
    ] = Envelope.WRAPPED,
    updated: Annotated[bool, typer.Option("--updated", help="Add the commit timestamp.")] = False,
    mvcc_timestamp: Annotated[
        bool, typer.Option("--mvcc-timestamp", help="Add the commit timestamp under this name.")
    ] = False,
    cursor: Annotated[
        str | None, typer.Option(help="Changes after this time; now where it is not given.")
    ] = None,
    end_time: Annotated[str | None, typer.Option(help="Changes up to this time, then end.")] = None,
    initial_scan: Annotated[
        bool, typer.Option(help="First the rows as they stand at the cursor, or now.")
    ] = False,
    initial_scan_only: Annotated[
        bool, typer.Option("--initial-scan-only", help="Only these rows, then end.")
    ] = False,
    resolved: Annotated[
        str | None,
        typer.Option(help="Write lines that say up to when all is there, so far apart: 10s, 0."),
    ] = None,
) -> None:
    """Write changes to standard output in commit order, without Spark, until stopped."""
    from slackwater.tail import options as changefeed

    lists = {
        "tables": tables,
        "exclude_tables": exclude_tables,
        "mod_types": mod_types,
        "transaction_tags": transaction_tags,
        "exclude_transaction_tags": exclude_transaction_tags,
        "columns": columns,
        "exclude_columns": exclude_columns,
    }
    kept: dict[str, Any] = {name: tuple(value) for name, value in lists.items() if value}
    if system_transactions is not None:
        kept["system_transactions"] = system_transactions
    names = zip(changefeed.NAMES, (project, instance, database, change_stream), strict=True)
    changefeed.tail(
        changefeed.ChangefeedOptions(
            config,
            {name: value for name, value in names if value is not None},
            kept,
            form,
            envelope,
            updated,
            mvcc_timestamp,
            cursor,
            end_time,
            initial_scan,
            initial_scan_only,
            resolved,
        )
    )


sql = typer.Typer(help="SQL over what a pipeline has written.", no_args_is_help=True)
app.add_typer(sql, name="sql")


@sql.command()
def view(config: File = None, pipeline: PipelineName = None, tables: Tables = None) -> None:
    """Print a Spark SQL view for each table: its rows as they stand, out of the changelog."""
    from slackwater.commands import sql_views as rebuild

    for statement in rebuild.views(load_settings(config, pipeline=pipeline), tables or ()):
        print(statement)  # noqa: T201


@app.command()
def verify(
    config: File = None,
    pipeline: PipelineName = None,
    tables: Tables = None,
    as_json: Json = False,
) -> None:
    """Compare the mirrors with their tables at the low watermark that each states."""
    from slackwater.commands import verify as verification

    is_proved = True
    for found in verification.verify(load_settings(config, pipeline=pipeline), tables or ()):
        is_proved &= found.is_proved
        print(json.dumps(found.fields()) if as_json else found.text())  # noqa: T201
    if not is_proved:
        raise typer.Exit(1)


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the output and the picture go.")
    ] = Path("out/demo"),
    seconds: Annotated[int, typer.Option("--seconds", help="How long to write.", min=10)] = 30,
) -> None:
    """Show it all on the emulator: churn, load, a kill in the middle, the proof."""
    from slackwater.demo.show import show

    if not show(directory, seconds=seconds):
        raise typer.Exit(1)


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            shown = (", ".join(f"{k} {v}" for k, v in item.items()) for item in value)
            pairs.append((f"{prefix}{name}".replace("_", " "), "; ".join(shown) or None))
        else:
            pairs.append((f"{prefix}{name}".replace("_", " "), value))
    return pairs


def _exit_code(error: BaseException) -> int:
    return 2 if getattr(error, "user_error", False) else 1


def _text(error: BaseException) -> str:
    message = getattr(error, "message", None)
    if message is None:
        # Spark's exceptions ask the session for their text; once it has stopped, this is left.
        left = getattr(error, "_desc", None)
        return f"{type(error).__name__}: {left or error}"
    hint = getattr(error, "hint", "")
    return f"{message}\n      {hint}" if hint else str(message)


def main() -> None:
    """The program's entry point."""
    try:
        code = app(standalone_mode=False)
        # Some versions of typer give the code of an Exit back, others let it through.
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except typer.Abort:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - the one place where errors become messages
        # Of click, which some versions of typer bring under a name of their own.
        if (show := getattr(error, "show", None)) is not None:
            show()
            sys.exit(2)
        if _Debug.on:
            traceback.print_exc()
        print(f"slackwater: {_text(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(_exit_code(error))


if __name__ == "__main__":
    main()
