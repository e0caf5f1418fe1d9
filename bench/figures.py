"""Output of a measurement's figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def tell(figures: Mapping[str, Any], into: Path | None) -> None:
    """Print figures as JSON, and write them to a file if there is one."""
    print(json.dumps(figures))
    if into is not None:
        into.write_text(json.dumps(figures, indent=1) + "\n")
