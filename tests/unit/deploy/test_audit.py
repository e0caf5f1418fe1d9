"""`make audit` shows something, or fails."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.repository import ROOT

UNANSWERED = {"name": "pyyaml", "skip_reason": "Dependency not found on PyPI"}
UNKNOWING = {"name": "pyyaml", "version": "5.3", "vulns": []}
KNOWING = {"name": "pyyaml", "version": "5.3", "vulns": [{"id": "PYSEC-2020-96"}]}


def audit(
    folder: Path, answer: Mapping[str, object], locked: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `make audit` with a stand-in for pip-audit.

    Args:
        folder: for the stand-in.
        answer: what it says of a package that is known to be vulnerable.
        locked: the status with which it ends for a lock file.
    """
    programs = {
        "python": "",
        "pip-audit": 'case "$*" in *json*) echo \''
        + json.dumps({"dependencies": [answer]})
        + f'\'; echo unreachable >&2; exit 1 ;; *) echo "$*"; exit {locked} ;; esac',
    }
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    command = ["make", "-s", "-o", "install", "audit", f"BIN={folder}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("answer", [UNANSWERED, UNKNOWING])
def test_an_audit_whose_source_says_nothing_fails_and_says_so(
    answer: Mapping[str, object], tmp_path: Path
) -> None:
    done = audit(tmp_path, answer)
    assert done.returncode != 0
    assert "nothing is shown" in done.stderr
    assert "unreachable" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("locked", [0, 1])
def test_an_audit_looks_at_each_lock_file_whose_packages_are_used(
    locked: int, tmp_path: Path
) -> None:
    done = audit(tmp_path, KNOWING, locked)
    assert (done.returncode == 0) == (locked == 0)
    files = [line.rpartition(" ")[2] for line in done.stdout.splitlines()]
    # The image's lock file has a part of the first one's packages.
    every = {
        "requirements.lock",
        "requirements-spark42.lock",
        "requirements-docs.lock",
        "requirements-bigquery.lock",
        "deploy/sbom.lock",
    }
    assert set(files) == (every if locked == 0 else {"requirements.lock"})
    locks = {
        str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.lock"), *ROOT.glob("deploy/*.lock"))
    }
    assert locks - every == {"requirements.runtime.lock"}
