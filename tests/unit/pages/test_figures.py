"""Each figure in README.md and docs/ has something that shows it, in tests/support/figures.py."""

import re
from collections.abc import Iterator

import pytest

from tests.support.figures import BY_ITS_BENCHES, FIGURES, OTHERS
from tests.support.repository import DOCS, ROOT

PAGES = {page.name: page for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}
NUMBER = r"\d+(?:[.,]\d+)*"
NUMBERS = rf"{NUMBER}(?: (?:to|and|or) {NUMBER})?(?: million)?"
WORDS = (
    "two|three|four|five|six|seven|eight|ten|fifteen|twenty|thirty|sixty|hundreds? of|hundred"
    "|thousands? of|thousand|two million|million|(?:few|some) tenths of a|half|half an?"
)
MEASURES = (
    "us|ms|s|min|h|(?:micro|milli)?seconds?|minutes?|hours?|days|weeks|months|years|[KMG]i?B"
    "|bytes|cores|CPU-seconds|times|requests|records|heartbeats|transactions|dollars|percent"
)
COUNTS = (
    "(?:idle |small |key |delete |Python |random |simulated )?(?:rows|partitions|epochs|files"
    "|folders|commits|objects|updates|characters|ranges|packages|wheels|messages|seeds|lives"
    "|orders)"
)
FIGURE = re.compile(
    rf"(?<![\w.,`/:-])(?:{NUMBERS} (?:{MEASURES}|{COUNTS}|(?:a|per) (?:CPU-)?second)\b"
    rf"|{NUMBERS}(?: ?%|[smhd]\b)|(?!two times)(?:{WORDS}) (?:{MEASURES}|rows)\b"
    r"|(?:half |quarter of )?an? (?:minute|hour|day|week)\b|twice a second|half of a core\b)",
    re.IGNORECASE,
)


def text_of(name: str) -> str:
    """Return a page without its blocks of code, as one line."""
    text = re.sub(r"^```.*?^```$", "", PAGES[name].read_text(), flags=re.MULTILINE | re.DOTALL)
    return " ".join(re.sub(r"^    .*$", "", text, flags=re.MULTILINE).split())


def figures_in(text: str) -> Iterator[re.Match[str]]:
    """Yield the figures of a text that are not within code."""
    yield from FIGURE.finditer(re.sub(r"`[^`]*`", lambda code: "`" * len(code[0]), text))


def spans_of(entry: str, text: str) -> list[tuple[int, int]]:
    """Return where an entry of the list stands; " ... " leaves out what is between."""
    pattern = ".*?".join(re.escape(part) for part in entry.split(" ... "))
    return [match.span() for match in re.finditer(pattern, text)]


@pytest.mark.parametrize("name", sorted(PAGES.keys() - BY_ITS_BENCHES))
def test_each_figure_of_a_page_is_in_the_list(name: str) -> None:
    text = text_of(name)
    spans = [span for entry in FIGURES.get(name, {}) for span in spans_of(entry, text)]
    without = [
        text[max(0, figure.start() - 60) : figure.end() + 60]
        for figure in figures_in(text)
        if not any(start <= figure.start() and figure.end() <= end for start, end in spans)
    ]
    assert without == [], "add what shows it to tests/support/figures.py, or leave the figure out"


@pytest.mark.parametrize("name", FIGURES)
def test_each_entry_of_the_list_is_on_its_page(name: str) -> None:
    text = text_of(name)
    assert [entry for entry in FIGURES[name] if not spans_of(entry, text)] == []


def is_there(shown_by: str) -> bool:
    """Return True if a program exists, or a file with that test or that text."""
    if shown_by.startswith("python -m "):
        return (ROOT / f"{shown_by.removeprefix('python -m ').replace('.', '/')}.py").is_file()
    file, _, text = shown_by.partition("::")
    if not (ROOT / file).is_file():
        return shown_by in OTHERS
    line = f"def {text}(" if text.startswith("test_") else text
    return bool(line) and line in (ROOT / file).read_text()


def test_what_shows_a_figure_is_there() -> None:
    assert [
        (name, entry, shown_by)
        for name, entries in FIGURES.items()
        for entry, shown_by in entries.items()
        if not is_there(shown_by)
    ] == []


@pytest.mark.parametrize("name", BY_ITS_BENCHES)
def test_each_section_of_a_page_of_measurements_names_its_program(name: str) -> None:
    _, *sections = PAGES[name].read_text().split("\n## ")
    for section in sections:
        programs = re.findall(r"python -m (?:bench|tests)[.\w]+", section)
        assert programs, section.partition("\n")[0]
        assert all(is_there(program) for program in programs)


def test_a_figure_without_an_entry_is_noticed() -> None:
    for figure in ("4 to 5 s", "300 MiB", "half a minute", "7 %", "5 million records", "1s to 7d"):
        assert list(figures_in(f"It takes {figure} here.")), figure
    assert not list(figures_in("1. Tasks read `10 s` of Python 3.11 in step 2."))
    assert not is_there("python -m bench.nothing")
    assert not is_there("reader/query_window.py::QUERY_SPAN_MAX_NS: Final = 1")
