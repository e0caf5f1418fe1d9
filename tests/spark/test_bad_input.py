"""Bad input: one clear message, exit code 2 or 1, no trace, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
import yaml

from slackwater.demo.load import CHANGE_STREAM, ddl
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.store import Store
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import create_database

DATABASE = "bad-input"


@pytest.fixture(scope="module")
def stream(emulator: Emulator) -> ChangeStream:
    made = ChangeStream(
        "test-project", "test-instance", DATABASE, CHANGE_STREAM, emulator_host=emulator.host
    )
    create_database(made, Dialect.GOOGLE_STANDARD_SQL, ddl(Dialect.GOOGLE_STANDARD_SQL))
    return made


@pytest.fixture
def settings(stream: ChangeStream, tmp_path: Path) -> dict[str, Any]:
    return {
        "pipeline": "orders",
        "source": {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
        },
        "sink": {
            "path": str(tmp_path / "out" / "changes"),
            "checkpoint": str(tmp_path / "out" / "checkpoint"),
        },
        "state": {"url": f"sqlite:///{tmp_path / 'out' / 'state.db'}"},
        "spark": {"master": "local[2,4]"},
    }


def run(
    settings: Mapping[str, Any],
    tmp_path: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """`slackwater run`: exit code and what it said."""
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(dict(settings)))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "slackwater.cli",
            *arguments,
            "run",
            "-c",
            str(config),
            "--until-caught-up",
        ],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


def said(text: str) -> str:
    """The last message, without what Spark itself prints while it starts."""
    assert "Traceback" not in text, text
    assert text.count("slackwater: ") == 1, text
    return text[text.index("slackwater: ") :]


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("source", {"project": "other-project"}, "other-project"),
        ("source", {"instance": "other-instance"}, "other-instance"),
        ("source", {"database": "other-database"}, "other-database"),
        (
            "source",
            {"change_stream": "Other"},
            "has no change stream 'Other'",
        ),
        ("source", {"change_stream": "S`; DROP"}, "is not a valid name in Spanner"),
        ("source", {"change_strem": "S"}, "unknown key; did you mean 'change_stream'?"),
        ("source", {"start": "1999-01-01T00:00:00Z"}, "or later"),
        ("source", {"start": "2999-01-01T00:00:00Z"}, "after Spanner's clock"),
        ("source", {"start": "tomorrow"}, "not an RFC 3339 timestamp"),
        (
            "source",
            {"start": "2026-02-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"},
            "lies before start",
        ),
        (
            "source",
            {"initial_scan": "yes", "end": "2026-01-01T00:00:00Z"},
            "is in the past, and the initial scan",
        ),
        ("sink", {"format": "parket"}, "known: parquet, json, orc"),
        ("epoch", {"heartbeat": "10ms"}, "epoch.heartbeat"),
        ("state", {"url": "nonsense"}, "Write sqlite:///"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_users_mistake_is_named_with_exit_code_2_and_nothing_is_written(
    section: str,
    changes: dict[str, str],
    expected: str,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    settings[section] = {**settings.get(section, {}), **changes}
    code, text = run(settings, tmp_path)
    assert expected in said(text)
    assert code == 2
    assert not (tmp_path / "out").exists()


def test_an_unreachable_store_is_not_the_users_mistake(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    settings["state"] = {"url": "postgresql+psycopg://user:secret@127.0.0.1:1/db"}
    code, text = run(settings, tmp_path)
    assert "127.0.0.1:1" in said(text)
    assert "secret" not in text
    assert code == 1
    assert not (tmp_path / "out").exists()


def test_a_store_of_a_newer_schema_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'newer.db'}"
    Store.open(url, migrate=True).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    settings["state"] = {"url": url}
    code, text = run(settings, tmp_path)
    assert "newer than this program's" in said(text)
    assert code == 2
    assert not (tmp_path / "out").exists()


def test_an_unreachable_host_is_not_the_users_mistake(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    code, text = run(settings, tmp_path, environ={"SPANNER_EMULATOR_HOST": "127.0.0.1:1"})
    assert "127.0.0.1:1" in said(text)
    assert code == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_permission_is_not_the_users_mistake_and_says_what_to_grant(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """The emulator allows everything, so a server of the real protocol refuses."""

    class Refuse(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            del details

            def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
                del request
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "Caller is missing IAM permission")
                raise AssertionError

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Refuse(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        code, text = run(settings, tmp_path, environ={"SPANNER_EMULATOR_HOST": f"127.0.0.1:{port}"})
    finally:
        server.stop(None)
    assert "Caller is missing IAM permission" in said(text)
    assert "roles/spanner.databaseReader" in text
    assert code == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.cli", "run", "-c", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "none.yaml can't be read: No such file" in said(done.stderr)
    assert done.returncode == 2


def test_debug_shows_the_trace(settings: dict[str, Any], tmp_path: Path) -> None:
    settings["source"]["database"] = "other-database"
    code, text = run(settings, tmp_path, "--debug")
    assert "Traceback" in text
    assert code == 2


def test_a_checkpoint_of_another_pipeline_and_a_lost_one_are_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    code, text = run(settings, tmp_path)
    assert code == 0, text
    other = {**settings, "pipeline": "other"}
    code, text = run(other, tmp_path)
    assert "belongs to pipeline 'orders', and this is pipeline 'other'" in said(text)
    assert code == 2
    lost = {**settings, "sink": {**settings["sink"], "checkpoint": str(tmp_path / "out" / "new")}}
    code, text = run(lost, tmp_path)
    assert "epochs were committed, and the checkpoint is empty" in said(text)
    assert code == 2
    assert not (tmp_path / "out" / "new").exists()
