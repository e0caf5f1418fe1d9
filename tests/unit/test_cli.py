"""The command line: usage errors, exit codes, and where messages go."""

import errno
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml

from slackwater import cli
from slackwater.errors import ClassArchiveError, SettingsError
from slackwater.reader.transport.connection import Connection
from slackwater.state.store import Store
from tests.support.command_line import slackwater
from tests.unit.config.test_settings import MINIMAL


def test_the_version_is_that_of_the_package() -> None:
    done = slackwater("--version")
    assert done.returncode == 0
    assert done.stdout == f"slackwater {version('slackwater')}\n"


def test_jars_of_an_unknown_format_are_a_usage_error_that_lists_the_formats(tmp_path: Path) -> None:
    done = slackwater("jars", str(tmp_path), "delta", "parquet")
    assert done.returncode == 2
    error = done.stderr
    assert "'parquet' is not one of delta, iceberg, kafka" in error


def test_jars_go_into_a_folder_and_an_archive_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = slackwater("jars", str(file))
    assert done.returncode == 2
    assert "is a file" in done.stderr
    done = slackwater("class-archive", str(tmp_path))
    assert done.returncode == 2
    assert "is a directory" in done.stderr


def test_jars_without_formats_are_those_of_all_formats(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from slackwater.commands import jars

    def fetch(folder: Path, sink_formats: tuple[str, ...]) -> list[Path]:
        return [folder / f"{name}.jar" for name in sink_formats]

    monkeypatch.setattr(jars, "fetch", fetch)
    done = slackwater("jars", str(tmp_path))
    assert done.returncode == 0
    names = [Path(line).stem for line in done.stdout.splitlines()]
    assert names == ["delta", "iceberg", "kafka", "s3a", "gs", "abfss"]
    done = slackwater("jars", str(tmp_path), "kafka")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path / 'kafka.jar'}\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SettingsError("a.", "b"), 2, "a.\n      b\n"),
        (ClassArchiveError("a.", "b"), 1, "a.\n      b\n"),
        (
            OSError(errno.ENOSPC, "No space left", "/x"),
            1,
            "OSError: [Errno 28] No space left: '/x'\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            2,
            "/x can't be used: Permission denied.\n      Choose another place, or make it one that"
            " this user may read and write\n",
        ),
    ],
)
def test_the_exit_code_says_whether_the_user_has_to_change_something(
    error: Exception,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from slackwater.commands import class_archive

    def make(path: Path) -> None:
        raise error

    monkeypatch.setattr(class_archive, "make", make)
    done = slackwater("class-archive", str(tmp_path / "classes.jsa"))
    assert done.returncode == code
    assert done.stderr == f"slackwater: {said}"
    assert done.stdout == ""


@pytest.mark.parametrize(("wait", "code"), [("5", 0), ("0", 0), ("1m", 0), ("soon", 2)])
def test_a_wait_may_be_a_bare_number_of_seconds(
    wait: str,
    code: int,
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    store.close()
    done = slackwater("stop", "-c", str(config), "--wait", wait)
    assert done.returncode == code
    assert ("orders: no process runs it" in done.stdout) is (code == 0)


def test_a_printed_command_has_the_options_of_the_command_that_prints_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    config = tmp_path / "of two.yaml"
    values = MINIMAL | {"state": {"url": url}, "pipelines": {"orders": {}, "payments": {}}}
    sink = values.pop("sink")
    for name, section in values["pipelines"].items():
        section["sink"] = {key: f"{value}/{name}" for key, value in sink.items()}
    del values["pipeline"]
    config.write_text(yaml.safe_dump(values))
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    store.close()
    done = slackwater("resume", "-c", str(config), "--pipeline", "orders")
    assert f"`slackwater run -c '{config}' --pipeline orders` starts one" in done.stdout
    refused = slackwater("partitions", "-c", str(config), "--pipeline", "payments")
    assert f"`slackwater run -c '{config}' --pipeline payments` starts it" in refused.stderr


def test_help_is_printed_without_loading_spark_or_a_client() -> None:
    code = "import sys, slackwater.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"google.cloud.spanner_v1", "grpc", "pyarrow", "pyspark", "sqlalchemy"}
    assert heavy.isdisjoint(done.stdout.split())


COMMANDS = ["", *sorted(typer.main.get_command(cli.app).commands), "sql view"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_whole_at_80_columns(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = slackwater(*command.split(), "--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # Neither a command's sentence nor an option's name is cut off.
    assert not [line for line in lines[1:] if line.endswith("...") and "HOST:PORT" not in line]
    assert not [line for line in lines if "…" in line]


def test_shells_are_offered_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    done = slackwater("--show-completion")
    assert done.returncode == 0
    assert "_SLACKWATER_COMPLETE=complete_bash" in done.stdout


def test_a_settings_file_of_the_usual_name_need_not_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = slackwater("stop")
    assert done.returncode == 2
    assert "no settings file was named" in done.stderr
    text = yaml.safe_dump(MINIMAL | {"state": {"url": f"sqlite:///{tmp_path / 'state.db'}"}})
    (tmp_path / "slackwater.yaml").write_text(text)
    done = slackwater("stop")
    assert done.returncode == 2
    assert "pipeline 'orders' has not started yet" in done.stderr


@pytest.mark.parametrize(
    ("command", "needs_one"),
    [("check", False), ("status", False), ("drain", True), ("partitions", True), ("tail", True)],
)
def test_of_several_pipelines_one_is_named_where_only_one_is_meant(
    command: str,
    needs_one: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Nobody listens there, for which half a minute is waited, and the store has neither.
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "127.0.0.1:1")
    monkeypatch.setattr(Connection.retry, "__kwdefaults__", {"seconds_max": 0.1})
    monkeypatch.chdir(tmp_path)
    sinks = {
        name: {"path": str(tmp_path / name), "checkpoint": str(tmp_path / f"{name}-c")}
        for name in ("a", "b")
    }
    shared = {key: value for key, value in MINIMAL.items() if key not in ("pipeline", "sink")}
    values = {**shared, "pipelines": {name: {"sink": sink} for name, sink in sinks.items()}}
    (tmp_path / "slackwater.yaml").write_text(yaml.safe_dump(values))
    done = slackwater(command)
    if needs_one:
        assert done.returncode == 2
        assert "Name one with --pipeline: a, b" in done.stderr
    else:
        lines = done.stdout.splitlines()
        assert [line for line in lines if line.startswith(("a:", "b:"))] == (
            ["a:", "b:"] if command == "check" else ["a: Has not started", "b: Has not started"]
        )
