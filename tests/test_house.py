"""The rules of the house: where imports point, how large files are, what they must not name."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.repository import ROOT, parsed

Node = TypeVar("Node", bound=ast.AST)

# The folders of the package; the first four stand in it as links.
LINKED = ("reader", "state", "scheduler", "spark_sink")
PACKAGES = (*LINKED, "slackwater")
OTHERS = ("tests", "bench")
FUNCTION_LINES_MAX = 60
# A migration that was released stays as it is.
LONG_FUNCTIONS = {"state/migrations/versions/v0001_first.py:upgrade"}
PARAMETERS_MAX = 8
# Typer makes an option of each parameter.
OPTIONS_OF_TYPER = {"slackwater/cli.py:tail_", "slackwater/cli.py:init"}
# Each lacks its object: ask whom, look at what, known to be what.
NAMES_THAT_SAY_NOTHING = {
    *("ask", "look", "share", "take"),
    *("former", "found", "given", "kept", "known", "left", "told"),
}
# A docstring is a noun phrase or an imperative, and more than a reference.
NO_FIRST_WORDS = {"as", "how", "of", "see", "what", "who", "whoever", "whose"}
HEAVY = {"google", "grpc", "pyarrow", "pyspark", "sqlalchemy", "time"}
# time is built into the interpreter and loaded before any of our code runs.
SEEN_IN_MODULES = HEAVY - {"time"}
SPARK = {"py4j", "pyspark"}
CLIENTS = {"grpc", "google.cloud.spanner_v1", "sqlalchemy"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def pure_modules() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (pure,) = [c for c in contracts if c["name"].startswith("pure modules")]
    return list(pure["source_modules"])


@cache
def nodes_by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """The nodes of a file, which is parsed and walked through once for all tests."""
    by_kind: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(parsed(path)):
        by_kind.setdefault(type(node), []).append(node)
    return by_kind


def nodes(path: Path, *kinds: type[Node]) -> Iterator[Node]:
    for kind in kinds:
        for node in nodes_by_kind(path).get(kind, ()):
            assert isinstance(node, kind)
            yield node


@pytest.fixture(autouse=True, scope="module")
def _nodes_of_these_tests() -> Iterator[None]:
    """Many objects make each collection of garbage in the other tests of this process slower."""
    yield
    nodes_by_kind.cache_clear()


@cache
def imported(path: Path) -> frozenset[str]:
    modules = [alias.name for node in nodes(path, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes(path, ast.ImportFrom) if node.module]
    return frozenset(module.split(".")[0] for module in modules)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_point_one_way() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(lint), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pure_module_loads_nothing_heavy() -> None:
    """Re-exports in a package's __init__ would pass the import contracts and still load it."""
    modules = pure_modules()
    # Together: what none of them loads no single one does.
    loaded = {name.split(".")[0] for name in loaded_after(f"import {', '.join(modules)}")[0]}
    assert loaded & SEEN_IN_MODULES == set()
    for module in modules:
        path = ROOT / (module.replace(".", "/") + ".py")
        assert path.is_file(), module
        assert imported(path) & HEAVY == set(), module


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in nodes(path, ast.FunctionDef):
        yield f"{name_of(path)}:{node.name}", node


def parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def test_a_function_fits_a_screen_and_takes_few_parameters() -> None:
    for name, function in (pair for path in sources(*PACKAGES) for pair in functions(path)):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX or name in LONG_FUNCTIONS, name
        assert parameters(function) <= PARAMETERS_MAX or name in OPTIONS_OF_TYPER, name


NAMING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs),
    *(ast.arg, ast.Name, ast.Attribute),
)


def names_defined(path: Path) -> Iterator[tuple[str, int]]:
    """Not those that are only used: others' libraries have a take(), too."""
    for node in nodes(path, *NAMING):
        match node:
            case (
                ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ClassDef(name=str(name))
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name, node.lineno


def test_a_name_says_what_it_names() -> None:
    for path in sources(*PACKAGES):
        for name, line in names_defined(path):
            assert name.strip("_").lower() not in NAMES_THAT_SAY_NOTHING, f"{path}:{line}"


DOCUMENTED: tuple[type[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef], ...] = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
)


def test_a_docstring_begins_with_what_it_describes() -> None:
    for path in sources(*PACKAGES):
        for node in nodes(path, *DOCUMENTED):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                first_word = docstring.split()[0].lower().strip(",.:;")
                assert first_word not in NO_FIRST_WORDS, f"{path}: {docstring.splitlines()[0]}"


def test_modules_are_named_by_what_they_hold() -> None:
    for path in sources(*PACKAGES):
        assert path.stem not in {"utils", "util", "helpers", "common", "misc"}, path
        if path.name == "__init__.py":
            (module,) = nodes(path, ast.Module)
            (only,) = module.body
            assert isinstance(only, ast.Expr), f"{path} holds more than a docstring"
            assert isinstance(only.value, ast.Constant), path


def test_in_the_sinks_one_module_knows_how_pyspark_reaches_the_jvm() -> None:
    for path in sources("spark_sink"):
        names = {node.attr for node in nodes(path, ast.Attribute)}
        if path.name != "java.py":
            assert "py4j" not in imported(path), path
            assert names.isdisjoint({"_jsparkSession", "_jsc", "_jdf", "_gateway"}), path


def test_in_the_scheduler_only_the_sources_know_spark() -> None:
    """The contract in pyproject.toml lists modules, and a new one would not be in it."""
    for path in sources("scheduler"):
        assert path.parent.name == "spark" or "pyspark" not in imported(path), path


def test_our_folders_are_imported_as_parts_of_slackwater_only() -> None:
    """The bare names work in the repository's root, and nowhere else."""
    # Most files are not parsed: an import that names a folder at all has it in its first line.
    named = re.compile(rf"^\s*(?:import|from)\b.*(?<![\w.])(?:{'|'.join(LINKED)})\b", re.MULTILINE)
    for path in [*sources(*PACKAGES, *OTHERS), *ROOT.glob("pyspark_slackwater*.py")]:
        if named.search(path.read_text()):
            assert imported(path).isdisjoint(LINKED), path


def test_the_tests_share_one_start_of_spark() -> None:
    """A second one in the process of a module that has one of its own would be refused."""
    starts = re.compile(r"\bstart_spark\(|\.getOrCreate\(")
    files = {name_of(path) for path in sources("tests/spark") if starts.search(path.read_text())}
    assert files == {"tests/spark/sessions.py"}


def test_the_folders_stand_in_the_package_as_links() -> None:
    for name in LINKED:
        assert (ROOT / "slackwater" / name).readlink() == Path("..", name)


def loaded_after(*statements: str) -> list[set[str]]:
    """The modules that a new process has after each of some statements.

    A process for each would load the same libraries again. What is not there after some modules,
    none of them loads.
    """
    code = "import sys\n" + "".join(f"{each}\nprint(*sys.modules)\n" for each in statements)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_a_command_loads_only_what_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "state: {url: sqlite:///state.db}\n"
        "pipeline: orders\n"
        "source: {project: project, instance: instance, database: database, change_stream: S}\n"
        "sink: {kind: changelog, path: out, checkpoint: checkpoint}\n"
    )
    by_settings, by_request, by_others = loaded_after(
        "import pathlib, slackwater.config.load;"
        f"slackwater.config.load.load_settings(pathlib.Path({str(file)!r}), {{}})",
        "import slackwater.commands.request",
        "import slackwater.commands.status, slackwater.tail.options",
    )
    # Settings load every kind of sink, and each command waits for it.
    assert "slackwater.spark_sink.sinks.kafka" in by_settings
    assert by_settings.isdisjoint(CLIENTS | SPARK | {"fastavro", "numpy", "pyarrow", "requests"})
    # A request is a row of the metadata store.
    assert by_request.isdisjoint(SPARK | {"grpc", "pyarrow"})
    # These start no Spark.
    assert by_others.isdisjoint(SPARK)


READER_MADE = (
    "slackwater.scheduler.spark.data_source as spanner, slackwater.reader.schema as rows;"
    "from pyspark.sql.types import LongType, StructField, StructType;"
    "columns = StructType([StructField(name, LongType()) for name in rows.SCHEMA.names]);"
    "names = dict.fromkeys(('project', 'instance', 'database', 'change_stream'), 'name');"
    "spanner.SpannerChangesDataSource(names).streamReader(columns)"
)


@pytest.mark.parametrize(
    "steps",
    [
        [
            # Spark asks for names and columns in processes of their own, which a start waits for.
            (
                "slackwater.pipeline.spark.task_writing",
                {"pyarrow", "slackwater.scheduler.spark.scan_source"},
                CLIENTS,
            ),
            # Spark loads it in processes that read nothing, one after the other at each start.
            (READER_MADE, set(), CLIENTS),
            ("pyspark_slackwater_bigtable", set(), CLIENTS),
            ("slackwater.scheduler.spark.stream_reader", CLIENTS, set()),
        ],
        # pyarrow starts a thread when it is loaded, which no child of a fork has.
        [("slackwater.scheduler.spark.worker_daemon", {"google.cloud.spanner_v1"}, {"pyarrow"})],
    ],
)
def test_a_process_of_spark_loads_only_what_it_needs(
    steps: list[tuple[str, set[str], set[str]]],
) -> None:
    before: set[str] = set()
    after_each = loaded_after(*(f"import {module}" for module, _, _ in steps))
    for (_, loads, loads_none), loaded in zip(steps, after_each, strict=True):
        assert loads <= loaded - before
        assert loaded.isdisjoint(loads_none)
        before = loaded


def test_test_folders_are_named_by_kind() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders.isdisjoint(PACKAGES)


def test_no_file_names_a_place_of_one_machine() -> None:
    shown = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    homes = "|".join(("root", "work", "home"))
    hosts = "|".join((r"pypi\.org", r"pythonhosted\.org", r"deb\.debian\.org"))
    bad = re.compile(rf"(?<![\w.])/(?:{homes})/|{hosts}")
    for name in shown.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".png", ".svg"} or not path.is_file():
            continue
        match = bad.search(path.read_text(errors="replace"))
        assert match is None, f"{name} names {match and match.group()}"


def test_only_one_module_of_the_program_reaches_behind_pyspark() -> None:
    reaching = re.compile(
        r"\._(?:jvm|jsc|jsq|gateway|jsparkSession)\b|^(?:from|import) py4j", re.MULTILINE
    )
    folders = [ROOT / "slackwater" / name for name in LINKED]
    assert [
        path.name
        for path in sources("slackwater")
        if path.parts[: len(ROOT.parts) + 2] not in [folder.parts for folder in folders]
        and reaching.search(path.read_text())
    ] == ["jvm.py"]
