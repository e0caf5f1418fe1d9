"""Without an extra the rest works, and what needs it names the command that brings it."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.config.settings import Settings
from slackwater.extras import MODULES, extra_of, needed
from tests.support.repository import ROOT

SOURCE = {"project": "shop-prod", "instance": "main", "database": "shop", "change_stream": "All"}
SINK = {"path": "out/changes", "checkpoint": "out/checkpoint"}
# Imports fail as where the modules are not installed.
_WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    modules = {modules!r}

    def find_spec(self, name, path, target=None):
        if any(name == module or name.startswith(module + ".") for module in self.modules):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
_MAIN = "from slackwater.cli import main; main()"
# A process each, of one that has loaded what a pipeline needs that needs no other extra.
_OF_EACH = """
import json
import os
from pathlib import Path

import slackwater.commands.run
from slackwater.cli import main

for folder, modules in json.loads(sys.argv[1]).items():
    process = os.fork()
    if process == 0:
        Missing.modules = modules
        os.chdir(folder)
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["slackwater", "run", "-c", "slackwater.yaml"]
        sys.exit(main())
    status = os.waitpid(process, 0)[1]
    Path(folder, "code").write_text(str(os.waitstatus_to_exitcode(status)))
"""
IN_BIGTABLE = {
    "kind": "bigtable",
    "project": "shop-prod",
    "instance": "instance",
    "table": "clicks",
}
# What makes a pipeline need an extra.
NEEDING: dict[str, dict[str, Any]] = {
    "spark": {},
    "delta": {"sink": SINK | {"format": "delta"}},
    "iceberg": {"sink": SINK | {"kind": "mirror", "format": "iceberg"}},
    "kafka": {"sink": SINK | {"kind": "kafka", "options": {"kafka.bootstrap.servers": "k:1"}}},
    "pubsub": {"sink": SINK | {"kind": "pubsub", "project": "orders"}},
    "bigquery": {"sink": SINK | {"format": "bigquery", "path": "bq://shop-prod/lake"}},
    "bigtable": {"source": IN_BIGTABLE},
    "ducklake": {"sink": SINK | {"kind": "mirror", "format": "ducklake"}},
    "postgres": {"state": {"url": "postgresql+psycopg://u@h/d"}},
    "spanner-store": {"state": {"url": "spanner+spanner:///projects/p/instances/i/databases/d"}},
    "http": {"http": {"listen": "127.0.0.1:8080"}},
    "otel": {"trace": {"endpoint": "http://127.0.0.1:4318/v1/traces"}},
}


IN_POSTGRESQL: dict[str, Any] = {
    "sink": SINK | {"kind": "mirror", "format": "postgresql", "path": "postgresql://h/d"}
}


def without(
    extras: Collection[str], program: str, *arguments: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    modules = [module for extra in extras for module in MODULES[extra]]
    command = [sys.executable, "-c", _WITHOUT.format(modules=modules) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "slackwater.yaml"
    path.write_text(yaml.safe_dump({"pipeline": "orders", "source": SOURCE, "sink": SINK} | values))
    return path


def test_each_extra_is_one_of_the_package_and_all_brings_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    [everything] = extras.pop("all")
    assert extras.keys() == MODULES.keys() == NEEDING.keys()
    assert sorted(everything.partition("[")[2].strip("]").split(",")) == sorted(extras)


@pytest.fixture(scope="module")
def without_each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run a pipeline that needs an extra without it, for each but Spark's; return the folders."""
    folders = {extra: tmp_path_factory.mktemp(extra) for extra in NEEDING if extra != "spark"}
    for extra, folder in folders.items():
        written(folder, NEEDING[extra])
    modules = {str(folder): MODULES[extra] for extra, folder in folders.items()}
    done = without(folders, _OF_EACH, json.dumps(modules), folder=next(iter(folders.values())))
    assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("extra", [extra for extra in NEEDING if extra != "spark"])
def test_a_pipeline_that_needs_an_extra_says_how_it_is_installed(
    extra: str, without_each: dict[str, Path]
) -> None:
    said = (without_each[extra] / "stderr").read_text()
    assert (without_each[extra] / "code").read_text() == "2", said
    assert f"pip install 'slackwater[{extra}]'" in said
    assert not (without_each[extra] / "out").exists()


def test_a_pipeline_without_spark_says_how_it_is_installed(tmp_path: Path) -> None:
    config = written(tmp_path, {})
    done = without(["spark"], _MAIN, "run", "-c", str(config), folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "pip install 'slackwater[spark]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_pipeline_needs_no_other_extra() -> None:
    for extra, values in NEEDING.items():
        settings = Settings.model_validate(
            {"pipeline": "orders", "source": SOURCE, "sink": SINK} | values
        )
        assert needed(settings) == list(dict.fromkeys(["spark", extra])), extra


def test_a_changelog_in_files_runs_without_any_other_extra(tmp_path: Path) -> None:
    others = MODULES.keys() - {"spark"}
    program = "import slackwater.commands.run, slackwater.spark_sink.output.file_epochs"
    done = without(others, program, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_mirrors_in_postgresql_need_its_driver() -> None:
    values = {"pipeline": "orders", "source": SOURCE} | IN_POSTGRESQL
    assert needed(Settings.model_validate(values)) == ["spark", "postgres"]


def test_the_store_is_asked_and_settings_are_loaded_without_what_a_pipeline_needs(
    tmp_path: Path,
) -> None:
    program = ["from pathlib import Path\nfrom slackwater.config.load import load_settings"]
    for number, values in enumerate([*NEEDING.values(), IN_POSTGRESQL]):
        folder = tmp_path / str(number)
        folder.mkdir()
        program.append(f"load_settings(Path({str(written(folder, values))!r}))")
    done = without(MODULES.keys(), "\n".join(program), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_tail_and_the_source_of_a_notebook_need_the_package_alone(tmp_path: Path) -> None:
    done = without(MODULES.keys(), "import slackwater.tail.options", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    readers = ("data_source", "stream_reader", "batch_reader", "typed_table", "worker_daemon")
    program = "\n".join(f"import slackwater.scheduler.spark.{name}" for name in readers)
    done = without(MODULES.keys() - {"spark"}, program, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_import_that_fails_elsewhere_is_no_missing_extra() -> None:
    assert extra_of(ModuleNotFoundError("no", name="slackwater.nothing")) is None
    assert extra_of(ValueError("no")) is None
    assert extra_of(ModuleNotFoundError("no", name="pyiceberg.table")) == "iceberg"
    assert extra_of(ModuleNotFoundError("no", name="opentelemetry")) == "otel"
