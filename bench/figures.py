"""What a measurement found, told to whoever ran it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tell(figures: Mapping[str, Any], into: Path | None) -> None:
    """Print figures as JSON, and write them to a file where one is given."""
    print(json.dumps(figures))
    if into is not None:
        into.write_text(json.dumps(figures, indent=1) + "\n")
