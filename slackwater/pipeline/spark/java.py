"""The Java that Spark runs on."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slackwater.errors import JavaNotFoundError
from slackwater.printing import show

VERSIONS: Final = (17, 21)
_HINT: Final = (
    "Install Java 17 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS:"
    " brew install openjdk@17; elsewhere: Eclipse Temurin 17) or set JAVA_HOME to one"
)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the java program, from JAVA_HOME or PATH.

    Raises:
        JavaNotFoundError: there is none, or Spark 4 does not run on its version.
    """
    home = environ.get("JAVA_HOME")
    path = (
        str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    )
    if path is None or not Path(path).exists():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is none on PATH"
        raise JavaNotFoundError(f"Spark needs Java, and {where}.", _HINT)
    version = java_version(Path(path))
    if version not in VERSIONS:
        what = "does not say its version" if version is None else f"is Java {version}"
        raise JavaNotFoundError(f"Spark needs Java 17 or 21, and {path} {what}.", _HINT)
    return Path(path)


def java_version(java: Path) -> int | None:
    """Return the feature version of a java program, such as 17; None if it does not say."""
    try:
        shown = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else None


def main() -> None:
    """Print the path of Java, or how to get it."""
    try:
        show(find_java())
    except JavaNotFoundError as error:
        sys.exit(f"slackwater: {error}")


if __name__ == "__main__":
    main()
