"""What stands in the docs for readers to copy."""

import re

from tests.support.repository import DOCS


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page that are in a language, in their order.

    Args:
        page: the name of its file.
        language: as the blocks name it.
    """
    text = (DOCS / page).read_text()
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
