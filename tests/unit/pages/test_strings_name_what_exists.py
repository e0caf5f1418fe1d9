"""Code in strings, and modules named in them, are seen by no import and no type checker."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent

from tests.support.repository import ROOT, parsed

FOLDERS = ("reader", "state", "scheduler", "spark_sink", "slackwater", "tests", "bench", "deploy")
# With one dot only it may be a column, a file or a setting of Spark's as well.
DOTTED = re.compile(r"(?<![\w./-])slackwater(?:\.[A-Za-z_]\w*){2,}")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
# Of most files no other line names the package, and these are not parsed.
IMPORTS = re.compile(r"^(?:from|import) .*", re.MULTILINE)


def strings(path: Path) -> Iterator[str]:
    if "slackwater" not in IMPORTS.sub("", path.read_text()):
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def imported_by(text: str) -> Iterator[str]:
    """The names of ours that a text imports, if it is Python."""
    try:
        tree = ast.parse(dedent(text))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_in(text: str) -> set[str]:
    if "slackwater" not in text:
        return set()
    imported = {name for name in imported_by(text) if name.startswith("slackwater.")}
    return {*DOTTED.findall(text), *imported}


@cache
def names_of_module(path: Path) -> frozenset[str]:
    """The names that a module defines or imports: a test replaces either."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return frozenset(names)


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or something in one."""
    path = ROOT
    parts = name.split(".")
    for index, part in enumerate(parts):
        if (path / part / "__init__.py").is_file():
            path /= part
        elif (path / f"{part}.py").is_file():
            rest = parts[index + 1 :]
            return not rest or rest[0] in names_of_module(path / f"{part}.py")
        else:
            return False
    return True


def test_a_string_names_only_modules_that_exist() -> None:
    for path in FILES:
        names = {name for text in strings(path) for name in named_in(text)}
        assert sorted(name for name in names if not exists(name)) == [], path


def test_a_name_that_does_not_exist_is_noticed() -> None:
    # Put together here, because this file is looked through, too.
    gone = ".".join(("slackwater", "changefeed"))
    assert named_in(f"import slackwater.cli, {gone}; print()") == {"slackwater.cli", gone}
    assert named_in(f"from {gone} import tail") == {f"{gone}.tail"}
    assert named_in(f"{gone}.Tail.lines") == {f"{gone}.Tail.lines"}
    assert named_in("see slackwater.yaml") == set()
    assert not exists(gone)
    assert not exists("slackwater.cli" + ".no_such_function")
    assert exists("slackwater.cli")
    assert exists("slackwater.cli.main")
    assert exists("slackwater.reader.query.batch_decoder.RecordConsumer")
