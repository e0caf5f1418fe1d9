"""The printing of text, made safe to show; nothing else of the program prints.

Names, tokens, reasons and values come from databases and their clients. On a terminal some of their
characters are commands, others reverse the direction of text, and some break lines.
"""

import json
import re
import sys
from typing import Final

# C0, DEL and C1; characters that change the direction of text; line and paragraph separator.
_MARKS: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSAFE: Final = re.compile(f"[{_MARKS}]")


def in_one_line(text: str) -> str:
    r"""Return text with JSON's escapes, such as \u001b, for characters that are not safe to show.

    Inside a JSON text the escape means the same as the character.
    """
    # Nearly all text is printable, which is fast to check.
    return text if text.isprintable() else _UNSAFE.sub(_escaped, text)


def show(text: object, *, to_errors: bool = False, at_once: bool = False) -> None:
    """Print lines of text to standard output, or to standard error; each safe to show.

    Args:
        text: one line or more.
        to_errors: to standard error.
        at_once: do not wait for more, because the next line may be a long time away.
    """
    lines = str(text).split("\n")
    file = sys.stderr if to_errors else sys.stdout
    print("\n".join(map(in_one_line, lines)), file=file, flush=at_once)


def _escaped(mark: re.Match[str]) -> str:
    return json.dumps(mark[0])[1:-1]
