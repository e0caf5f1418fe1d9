"""The folders of this repository, and its sources, for tests that read its files."""

import ast
import gc
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build"
DEPLOY: Final = ROOT / "deploy"
DOCS: Final = ROOT / "docs"


def parsed(path: Path) -> ast.Module:
    """Parse a file of Python, without collections of garbage: they took longer than the parsing."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if is_collecting:
            gc.enable()
