"""`slackwater init` asks Spanner for its change streams."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slackwater import cli
from slackwater.commands.init import InitOptions, init
from slackwater.config.load import load_settings
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.spark_sink.errors import PartialRowError
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import update_ddl
from tests.support.emulators import database_on

TABLES = {
    Dialect.GOOGLE_STANDARD_SQL: "CREATE TABLE Orders (Id INT64) PRIMARY KEY (Id)",
    Dialect.POSTGRESQL: 'CREATE TABLE "Orders" (id bigint PRIMARY KEY)',
}


def run(monkeypatch: pytest.MonkeyPatch, command: str) -> int:
    """Run the program as a shell does, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["slackwater", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def flags(stream: ChangeStream) -> str:
    return f"--project {stream.project} --instance {stream.instance} --database {stream.database}"


@pytest.mark.parametrize("dialect", Dialect)
def test_a_file_is_written_once_the_stated_statement_has_made_a_stream(
    dialect: Dialect,
    emulator: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = database_on(emulator, dialect, [TABLES[dialect]])
    command = f"init {flags(stream)} --sink kafka --kafka-servers 127.0.0.1:1"
    assert run(monkeypatch, command) == 2
    said = capsys.readouterr().err
    assert "has no change stream." in said
    assert list(tmp_path.iterdir()) == []
    [statement] = re.findall(r"^CREATE CHANGE STREAM .*$", said, re.MULTILINE)
    update_ddl(stream, [statement])
    assert run(monkeypatch, command) == 0
    settings = load_settings(tmp_path / "slackwater.yaml", {})
    assert settings.pipeline == "everything"
    assert settings.source.change_stream.lower() == "everything"
    text = (tmp_path / "slackwater.yaml").read_text()
    assert "value capture type NEW_ROW, kept for 7 d. It watches Orders." in text
    # It is not overwritten, unless that is asked for.
    assert run(monkeypatch, command) == 2
    assert "--force" in capsys.readouterr().err
    port = settings.http.port
    with socket.create_server(("127.0.0.1", port)):
        assert run(monkeypatch, f"init {flags(stream)} --sink json --force") == 0
    settings = load_settings(tmp_path / "slackwater.yaml", {})
    assert settings.sink.format == "json"
    # Where the first pipeline has its page, the second one gets another port.
    assert port < settings.http.port < 8100
    assert len(list(tmp_path.iterdir())) == 1


def test_of_several_streams_one_is_named_or_asked_for(
    emulator: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    dialect = Dialect.GOOGLE_STANDARD_SQL
    statements = [TABLES[dialect], "CREATE CHANGE STREAM A FOR ALL", "CREATE CHANGE STREAM B"]
    stream = database_on(emulator, dialect, statements)
    assert run(monkeypatch, f"init {flags(stream)}") == 2
    assert "Name one with --change-stream: A, B" in capsys.readouterr().err
    assert run(monkeypatch, f"init {flags(stream)} --change-stream C") == 2
    said = capsys.readouterr().err
    assert "It has: A, B" in said
    assert "CREATE CHANGE STREAM `C` FOR ALL" in said
    assert list(tmp_path.iterdir()) == []

    answers = {
        "Project": stream.project,
        "Instance": stream.instance,
        "Database": stream.database,
        "Sink": "mirror",
        "Change stream": "B",
    }

    def answer(name: str, values: Sequence[str], default: str | None) -> str:
        assert not values or answers[name] in values
        return answers.pop(name)

    options = InitOptions(tmp_path / "b.yaml", {}, (), None, None, None, None, force=False)
    made = init(options, answer)
    assert (made.sink, made.tables) == ("mirror", [])
    assert answers == {}
    assert (
        run(monkeypatch, f"init {flags(stream)} --change-stream B --force -c b.yaml --check") == 0
    )
    assert "ok    change stream: " in capsys.readouterr().out
    settings = load_settings(tmp_path / "b.yaml", {})
    assert (settings.source.change_stream, settings.sink.kind) == ("B", "changelog")
    # Kafka's messages would lack columns of these streams.
    answers |= {"Project": stream.project, "Instance": stream.instance, "Sink": "kafka"}
    answers |= {"Database": stream.database, "Kafka's brokers, HOST:PORT,...": "broker:9092"}
    answers |= {"Change stream": "A"}
    with pytest.raises(PartialRowError):
        init(InitOptions(tmp_path / "c.yaml", {}, (), None, None, None, None, force=False), answer)
    assert [path.name for path in tmp_path.iterdir()] == ["b.yaml"]
