"""Workers leave out the archives of the PySpark that is installed, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from slackwater.scheduler.spark import at_start
from slackwater.scheduler.spark.worker_path import without_archives


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder in which PySpark and Py4J are installed, with PySpark's archives."""
    for name in ("pyspark/__init__.py", "py4j/__init__.py", "pyspark/python/lib/pyspark.zip"):
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "site"


def test_the_archives_of_the_installed_pyspark_are_left_out(site: Path) -> None:
    archive = str(site / "pyspark/python/lib/pyspark.zip")
    assert without_archives(["", archive, str(site)]) == ["", str(site)]


def test_archives_of_another_spark_and_of_the_user_stay(site: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "spark" / "pyspark.zip"
    theirs.parent.mkdir()
    theirs.touch()
    places = [str(theirs), str(site)]
    assert without_archives(places) == places


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_what_is_not_installed_is_looked_for_in_archives(site: Path, missing: str) -> None:
    (site / missing / "__init__.py").unlink()
    places = [str(site / "pyspark/python/lib/pyspark.zip"), str(site)]
    assert without_archives(places) == places


def test_python_starts_without_the_archives_with_its_environments_own_module_and_collects_seldom(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    places = map(str, (archive, Path(at_start.__file__).parent, tmp_path))
    code = "import gc, pyspark; print(pyspark.__file__, gc.get_threshold()[0], sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=True,
    )
    # No collection begins with each 700 objects.
    assert done.stdout.splitlines() == ["own", pyspark.__file__, "50000"]
    assert done.stderr == ""
