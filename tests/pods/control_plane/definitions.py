"""Definitions of the kinds that operators bring, from the operators' own Go modules."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pods.control_plane.programs import go


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module with definitions.

    Attributes:
        name: with its version.
        checksum: of its content, as in go.sum.
        files: the definitions in it.
    """

    name: str
    checksum: str
    files: tuple[str, ...]

    def definitions(self) -> list[Path]:
        """Fetch the module, unless Go has it already, and return the definitions.

        Raises:
            RuntimeError: it can't be had, or is not what it was.
        """
        # Outside of this repository's own module, whose go.mod does not name it.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [go(), "mod", "download", "-json", self.name],
                cwd=folder,
                env={**os.environ, "GOFLAGS": "-mod=mod"},
                check=False,
                capture_output=True,
                text=True,
                timeout=600,
            )
        module = json.loads(done.stdout or "{}")
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: {module.get('Error', done.stderr)}")
        if module["Sum"] != self.checksum:
            raise RuntimeError(f"{self.name} has another checksum: {module['Sum']}")
        return [Path(module["Dir"], file) for file in self.files]


PROMETHEUS_OPERATOR: Final = Module(
    "github.com/prometheus-operator/prometheus-operator@v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    tuple(
        f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        for kind in ("servicemonitors", "prometheusrules")
    ),
)

# The oldest and the newest of the operator that can be had as a module.
SPARK_OPERATORS: Final = tuple(
    Module(
        f"github.com/kubeflow/spark-operator/v2@v{version}",
        checksum,
        ("charts/spark-operator-chart/crds/sparkoperator.k8s.io_sparkapplications.yaml",),
    )
    for version, checksum in (
        ("2.3.0", "h1:cYN/331gwkdZ0S/ai72JQoUv7UK52O2OQOWFpl8XhPc="),
        ("2.5.0", "h1:NNgTHgQMbrGZSFJtprjssdtCaL/qlYYQY1EyXuRaP78="),
    )
)
