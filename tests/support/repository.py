"""The folders of this repository, for tests that read its files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build"
DEPLOY: Final = ROOT / "deploy"
DOCS: Final = ROOT / "docs"
