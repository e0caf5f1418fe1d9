"""Each promise of README.md stands there and has its tests, in tests/support/promises.py."""

import re

from tests.support.promises import ELSEWHERE, README
from tests.support.repository import ROOT
from tests.unit.pages.test_figures import is_there


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def test_each_promise_stands_on_its_page() -> None:
    readme = text_of("README.md")
    assert [promise for promise in README if promise not in readme] == []
    pages = [named.partition("::") for named in ELSEWHERE]
    assert [text for page, _, text in pages if text not in text_of(page)] == []


def test_the_tests_of_each_promise_are_there() -> None:
    missing = [
        (promise, test)
        for promise, tests in (README | ELSEWHERE).items()
        for test in tests
        if not (is_there(test) or ("::" not in test and (ROOT / test).is_file()))
    ]
    assert missing == []


def test_no_output_guarantee_or_command_of_the_readme_is_without_an_entry() -> None:
    readme = (ROOT / "README.md").read_text()
    outputs = re.findall(r"^\| `\w+` \|", readme, re.MULTILINE)
    guarantees = re.findall(r"^- \*\*[^*]+\*\*", readme, re.MULTILINE)
    commands = re.findall(r"^slackwater [a-z]+(?: --[a-z-]+)?", readme, re.MULTILINE)
    assert len(outputs) >= 5
    assert len(guarantees) >= 5
    assert len(commands) >= 5
    assert [
        claim
        for claim in [*outputs, *guarantees, *commands]
        if not any(entry.startswith(claim) for entry in README)
    ] == []
