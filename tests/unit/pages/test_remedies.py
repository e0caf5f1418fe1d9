"""Each command that a message or a page tells a user to run is carried out by a test."""

import re

import typer

from slackwater import cli
from tests.support.remedies import TESTS
from tests.support.repository import DOCS, ROOT

CODE = ("reader", "scheduler", "state", "spark_sink", "slackwater")
COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
VERBS = "|".join(sorted({*COMMANDS, "sql view"} - {"sql"}, key=len, reverse=True))
WRITTEN = re.compile(rf"(?<![\w/-])slackwater ({VERBS})\b([^`\n\"#]*)")


def texts() -> dict[str, str]:
    """Return what may tell a user to run a command, by its file."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "examples").glob("*.yaml")]
    code = [
        path
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        if not (folder == "slackwater" and path.relative_to(ROOT / folder).parts[0] in CODE)
    ]
    # A sentence of a message goes on in the next text.
    joined = {path: re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in code}
    whole = {page: re.sub(r"\\\n\s*", "", page.read_text()) for page in pages}
    return {str(path.relative_to(ROOT)): text for path, text in (joined | whole).items()}


def written() -> dict[str, set[str]]:
    """Return the commands that are written, each with its files."""
    commands: dict[str, set[str]] = {}
    for file, text in texts().items():
        for verb, rest in WRITTEN.findall(text):
            options = sorted(set(re.findall(r"(?<!\S)--[a-z-]+", rest)) - {"--pipeline"})
            commands.setdefault(" ".join([verb, *options]), set()).add(file)
    return commands


def test_each_command_that_is_written_has_its_test() -> None:
    commands = written()
    without = {command: files for command, files in commands.items() if command not in TESTS}
    assert without == {}
    # What is written nowhere is no remedy; those of a pipeline's process put its own verb there.
    assert TESTS.keys() - commands.keys() <= {"resume --from-watermark", "resume --skip-to"}


def test_no_command_is_written_that_there_is_not() -> None:
    words = {
        (file, word)
        for file, text in texts().items()
        for word in re.findall(r"(?:`|^[ $]*)slackwater ([a-z][a-z-]*)", text, re.MULTILINE)
    }
    assert {word for _, word in words} >= {"init", "run", "status"}
    assert {(file, word) for file, word in words if word not in COMMANDS} == set()


def test_the_tests_of_remedies_are_there() -> None:
    for node in set(TESTS.values()):
        file, _, name = node.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), node
