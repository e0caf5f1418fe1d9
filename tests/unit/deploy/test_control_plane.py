"""Kubernetes' own programs for the long proofs: what they are built from, and with what."""

import re
from pathlib import Path

import pytest

from tests.pods.control_plane import programs


def test_every_module_of_kubernetes_has_the_version_that_the_programs_say() -> None:
    modules = (Path(programs.__file__).parent / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{programs.VERSION}" in modules
    replaced = re.findall(r"=> k8s\.io/\S+ v0\.(\S+)", modules)
    assert len(replaced) > 20
    assert {f"1.{version}" for version in replaced} == {programs.VERSION}


def test_without_go_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="apt-get install golang"):
        programs.go()
