"""An install into a fresh environment: what it puts there, and that Spark finds the format.

The environments have this one's dependencies on their path, but nothing of this checkout.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.install.environments import Environment, run
from tests.support.emulators import NewDatabase
from tests.support.repository import ROOT

NOTEBOOK = Path(__file__).parent / "notebook.py"
EXECUTE = Path(__file__).parent / "execute.py"
# Prints the file that an import of each name would load, null where there is no such module.
ORIGINS = """
import json
from importlib.util import find_spec
names = ("slackwater", "pyspark_slackwater", "reader", "state", "scheduler", "spark_sink")
print(json.dumps({name: (spec := find_spec(name)) and str(spec.origin) for name in names}))
"""
FINDERS = ("pyspark_slackwater.py", "pyspark_slackwater_bigtable.py")
BARE_NAMES = ("reader", "state", "scheduler", "spark_sink")
PARTITION_ALIVE_S = 20


def test_a_wheel_holds_the_package_and_the_modules_by_which_spark_finds_the_formats(
    checkout: Path, wheel: Path
) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", str(wheel)).splitlines()[1:]
    files = [line.split()[0] for line in names]
    tops = {file.partition("/")[0] for file in files}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops == {"slackwater", *FINDERS, info}
    for name in BARE_NAMES:
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / name).rglob("*.py")}
        assert {f"slackwater/{path}" for path in ours} <= set(files)
    needed = [
        path.relative_to(checkout)
        for folder in ("slackwater/monitoring/page", "slackwater/state/migrations")
        for path in (checkout / folder).rglob("*.*")
    ]
    assert {path.suffix for path in needed} == {".py", ".html", ".css", ".js"}
    assert {str(path) for path in needed} <= set(files)


@pytest.mark.parametrize("kind", ["wheel", pytest.param("editable", marks=pytest.mark.long)])
def test_a_notebook_in_an_empty_folder_reads_changes(
    kind: str,
    environment: Environment,
    checkout: Path,
    wheel: Path,
    new_database: NewDatabase,
    tmp_path: Path,
) -> None:
    notebook = str(shutil.copy2(checkout / "examples" / "changes.ipynb", tmp_path))
    if kind == "wheel":
        environment.install(str(wheel))
    else:
        environment.install("-e", str(checkout))
    # A package of the user's that has one of our folders' names.
    (environment.packages / "reader.py").write_text("")
    stream = new_database()
    start = format_rfc3339(Connection(stream).strong_read_timestamp_ns())
    written = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=8).run(
        transactions_per_second=20, seconds=1
    )
    folder = tmp_path / "empty"
    folder.mkdir()
    python, programs = str(environment.python), environment.python.parent
    if kind == "wheel":
        variables = {
            "PROJECT": stream.project,
            "INSTANCE": stream.instance,
            "DATABASE": stream.database,
            "CHANGE_STREAM": stream.change_stream,
        }
        printed = run(python, str(EXECUTE), notebook, cwd=folder, variables=variables)
        counts, typed, landed = outputs(json.loads(printed))
        assert "| Customers|  INSERT|" in counts
        assert "|INSERT  |0      |item " in typed
        rows, missing = json.loads(landed.replace("(", "[").replace(")", "]"))
        assert rows >= written.transactions
        assert missing == 0
    else:
        names = (stream.project, stream.instance, stream.database, stream.change_stream)
        script = (python, str(NOTEBOOK), *names, start, str(written.transactions))
        printed = run(*script, cwd=folder, programs=programs)
        assert int(printed.splitlines()[-1]) >= written.transactions
    modules: dict[str, str | None] = json.loads(run(python, "-c", ORIGINS, cwd=folder))
    home = environment.packages if kind == "wheel" else checkout
    assert modules["slackwater"] == str(home / "slackwater" / "__init__.py")
    assert modules["pyspark_slackwater"] == str(home / "pyspark_slackwater.py")
    assert modules["reader"] == str(environment.packages / "reader.py")
    if kind == "wheel":
        assert not any(modules[name] for name in BARE_NAMES if name != "reader")


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Return what the cells of an executed notebook show, without what Java says."""
    shown = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if output.get("name") != "stderr" and "incubator" not in "".join(text):
                shown.append("".join(text))
    return shown
