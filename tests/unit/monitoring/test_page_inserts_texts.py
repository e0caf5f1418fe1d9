"""The page shows names of tables and tokens as texts: markup in them stays text."""

import re
from pathlib import Path

import slackwater.monitoring.page as page

AS_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|srcdoc"
    r"|DOMParser|\beval\b|new Function|setAttribute\(\s*[\"'`](?:on|href|src)"
)


def test_no_script_of_the_page_makes_markup_of_a_text() -> None:
    scripts = list(Path(str(page.__path__[0])).glob("*.js"))
    assert scripts
    assert [AS_MARKUP.findall(script.read_text()) for script in scripts] == [[]] * len(scripts)
