"""The pages that describe the code name what is in it, so that they can't go stale unnoticed."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from slackwater.config.settings import Settings
from slackwater.setting_values import keys_of
from tests.support.repository import DOCS, ROOT, parsed

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
# These describe the code itself; the others are for users. Each with a number of names that it has
# at least.
OF_THE_CODE = {
    ROOT / "CONTRIBUTING.md": 50,
    DOCS / "architecture.md": 30,
    DOCS / "code-paths.md": 150,
    DOCS / "decisions.md": 2,
}
FOLDERS = ("reader", "state", "scheduler", "spark_sink", "slackwater", "tests", "bench", "deploy")
# Names of Spark, of Delta and of git.
FOREIGN = ("spark.", "delta.", "core.", "FileSystemBasedCheckpointFileManager")


def code_spans(page: Path) -> list[str]:
    """The code spans of a page, without its code blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def members(body: list[ast.stmt], within: str) -> Iterator[str]:
    """The names that a module or a class defines, each with the dotted name that it is within."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}.{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield f"{within}.{node.name}"
            yield from members(node.body, f"{within}.{node.name}")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield f"{within}.{node.target.id}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield f"{within}.{target.id}"


@cache
def defined_names() -> frozenset[str]:
    """Every dotted name in the code, and each of its endings: scheduler.lineage.roots, roots."""
    names: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            for name in (module, *members(parsed(path).body, module)):
                parts = name.split(".")
                names |= {".".join(parts[start:]) for start in range(len(parts))}
                names.add(f"slackwater.{name}")
    return frozenset(names)


@cache
def setting_keys() -> frozenset[str]:
    keys: set[str] = set()
    for section, field in Settings.model_fields.items():
        keys |= {f"{section}.{name}" for name in keys_of(field)}
    return frozenset(keys)


def dangling_name(span: str) -> bool:
    """Return True for a name such as lineage.is_ready or CutFilter that the code does not have."""
    name = span.removesuffix("()")
    is_dotted = re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name)
    is_class = re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)+", name)
    if not is_dotted and not is_class:
        return False
    if name.startswith(FOREIGN) or (ROOT / name).exists():
        return False
    if name.endswith(".py"):
        return not any(list((ROOT / folder).rglob(name)) for folder in FOLDERS)
    return name not in defined_names() | setting_keys()


def dangling_path(text: str) -> bool:
    """Return True for a path in one of our folders where no file or folder is."""
    path = text.split("::")[0]
    if not re.fullmatch(r"[\w./*-]+", path) or path.split("/")[0] not in (*FOLDERS, "docs"):
        return False
    return "/" in path and not list(ROOT.glob(path.rstrip("/")))


def test_a_page_about_the_code_names_only_what_the_code_has() -> None:
    for page, names_min in OF_THE_CODE.items():
        spans = code_spans(page)
        assert len(spans) >= names_min
        assert [span for span in spans if dangling_name(span) or dangling_path(span)] == [], page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_tests_and_benchmarks_that_exist(page: Path) -> None:
    named = re.findall(r"\b(?:tests|bench|deploy)/[\w./-]*\w", page.read_text())
    assert [path for path in named if dangling_path(path)] == []


def test_the_makefile_names_only_tests_that_exist() -> None:
    named = re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / "Makefile").read_text())
    assert len(named) >= 10
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page if not name else page.parent / name
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_site_has_every_page() -> None:
    """And the one that `make docs` makes."""
    in_site = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT)) for page in PAGES]
    assert sorted(in_site) == sorted([*pages, "deploy/chart/README.md", "docs/reference.md"])


def test_a_name_and_a_path_that_do_not_exist_are_noticed() -> None:
    for dangling in ("lineage.is_redy", "reader.decode.nothing"):
        assert dangling_name(dangling)
    for existing in ("lineage.is_ready", "scheduler.lineage", "epoch.proof", "README.md"):
        assert not dangling_name(existing)
    assert dangling_path("scheduler/no_such_module.py")
    assert not dangling_path("scheduler/lineage.py")
