"""`slackwater init` asks Spanner for its change streams."""

import itertools
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from slackwater.commands.init import InitOptions, _name_like, init
from slackwater.config.load import load_settings
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.scheduler.source_settings import PIPELINE_NAME
from slackwater.spark_sink.errors import PartialRowError
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import update_ddl
from tests.support.command_line import slackwater
from tests.support.emulators import database_on

TABLES = {
    Dialect.GOOGLE_STANDARD_SQL: "CREATE TABLE Orders (Id INT64) PRIMARY KEY (Id)",
    Dialect.POSTGRESQL: 'CREATE TABLE "Orders" (id bigint PRIMARY KEY)',
}


def flags(stream: ChangeStream) -> list[str]:
    names = (stream.project, stream.instance, stream.database)
    flags = zip(("--project", "--instance", "--database"), names, strict=True)
    return [*itertools.chain(*flags)]


@pytest.mark.parametrize("name", ["Everything$1", f"A{'b' * 99}", "__", "_x"])
def test_a_pipeline_whose_stream_has_any_name_gets_a_name_that_is_taken(name: str) -> None:
    assert re.match(PIPELINE_NAME, _name_like(name))


@pytest.mark.parametrize("dialect", Dialect)
def test_a_file_is_written_once_the_stated_statement_has_made_a_stream(
    dialect: Dialect,
    emulator: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = database_on(emulator, dialect, [TABLES[dialect]])
    command = ("init", *flags(stream), "--sink", "kafka", "--kafka-servers", "127.0.0.1:1")
    done = slackwater(*command)
    assert done.returncode == 2
    said = done.stderr
    assert "has no change stream." in said
    assert list(tmp_path.iterdir()) == []
    [statement] = re.findall(r"^CREATE CHANGE STREAM .*$", said, re.MULTILINE)
    update_ddl(stream, [statement])
    done = slackwater(*command)
    assert done.returncode == 0
    settings = load_settings(tmp_path / "slackwater.yaml", {})
    assert settings.pipeline == "everything"
    assert settings.spanner().change_stream.lower() == "everything"
    text = (tmp_path / "slackwater.yaml").read_text()
    assert "value capture type NEW_ROW, kept for 7 d. It watches Orders." in text
    # It is not overwritten, unless that is asked for.
    done = slackwater(*command)
    assert done.returncode == 2
    assert "--force" in done.stderr
    port = settings.http.port
    with socket.create_server(("127.0.0.1", port)):
        done = slackwater("init", *flags(stream), "--sink", "json", "--force")
        assert done.returncode == 0
    settings = load_settings(tmp_path / "slackwater.yaml", {})
    assert settings.sink.format == "json"
    # Where the first pipeline has its page, the second one gets another port.
    assert port < settings.http.port < 8100
    assert len(list(tmp_path.iterdir())) == 1


def test_of_several_streams_one_is_named_or_asked_for(
    emulator: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    dialect = Dialect.GOOGLE_STANDARD_SQL
    statements = [TABLES[dialect], "CREATE CHANGE STREAM A FOR ALL", "CREATE CHANGE STREAM B"]
    stream = database_on(emulator, dialect, statements)
    done = slackwater("init", *flags(stream))
    assert done.returncode == 2
    assert "Name one with --change-stream: A, B" in done.stderr
    done = slackwater("init", *flags(stream), "--change-stream", "C")
    assert done.returncode == 2
    said = done.stderr
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
    over = ("--force", "-c", "b.yaml", "--check")
    done = slackwater("init", *flags(stream), "--change-stream", "B", *over)
    assert done.returncode == 0
    assert "ok    change stream: " in done.stdout
    settings = load_settings(tmp_path / "b.yaml", {})
    assert (settings.spanner().change_stream, settings.sink.kind) == ("B", "changelog")
    # Kafka's messages would lack columns of these streams.
    answers |= {"Project": stream.project, "Instance": stream.instance, "Sink": "kafka"}
    answers |= {"Database": stream.database, "Kafka's brokers, HOST:PORT,...": "broker:9092"}
    answers |= {"Change stream": "A"}
    with pytest.raises(PartialRowError):
        init(InitOptions(tmp_path / "c.yaml", {}, (), None, None, None, None, force=False), answer)
    assert [path.name for path in tmp_path.iterdir()] == ["b.yaml"]
