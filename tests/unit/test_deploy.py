"""The files in deploy/ render, are valid, and name only what the program has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import typer
import yaml

from slackwater.cli import app
from slackwater.config.load import load_settings
from slackwater.monitoring.metrics import Metrics, StatusCollector

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
OVERLAYS = sorted((DEPLOY / "kubernetes" / "overlays").iterdir())
KUBERNETES = "1.31"
# Kinds of the operators, whose schemas are not Kubernetes' own.
CUSTOM = ("ServiceMonitor", "SparkApplication")


def rendered(folder: Path) -> list[dict[str, Any]]:
    kubectl = shutil.which("kubectl")
    assert kubectl, "kubectl is missing: the package kubectl of the Google Cloud SDK has it"
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_renders_to_valid_manifests(overlay: Path) -> None:
    documents = rendered(overlay)
    kinds = {document["kind"] for document in documents}
    assert kinds & {"StatefulSet", "SparkApplication"}
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


def settings_files() -> Iterator[tuple[Path, dict[str, str]]]:
    yield DEPLOY / "slackwater.yaml", {}
    yield DEPLOY / "compose" / "slackwater.yaml", {}
    yield DEPLOY / "kubernetes" / "base" / "slackwater.yaml", {}
    for overlay in OVERLAYS:
        if (overlay / "slackwater.yaml").exists():
            yield overlay / "slackwater.yaml", {}


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the files in deploy/ that set the program's variables, with these."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    yield "Dockerfile", dict(re.findall(r"(SLACKWATER_\w+)=(\S+)", dockerfile))
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    yield "compose", compose["services"]["slackwater"]["environment"]
    for overlay in OVERLAYS:
        text = yaml.safe_dump_all(rendered(overlay))
        names = set(re.findall(r"SLACKWATER_\w+", text))
        yield overlay.name, dict.fromkeys(names, "postgresql+psycopg://user@host/database")


def test_every_settings_file_and_variable_is_one_that_the_program_takes() -> None:
    files = list(settings_files())
    assert len(files) >= 5
    for path, environ in files:
        load_settings(path, environ)
    for name, environ in environments():
        ours = {key: value for key, value in environ.items() if key.startswith("SLACKWATER_")}
        assert ours or name == "local", name
        load_settings(DEPLOY / "slackwater.yaml", ours)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_ports_probes_and_paths_are_those_that_the_program_has(overlay: Path) -> None:
    documents = {document["kind"]: document for document in rendered(overlay)}
    config = next(
        text
        for document in rendered(overlay)
        if document["kind"] == "ConfigMap"
        for name, text in document["data"].items()
        if name == "slackwater.yaml"
    )
    settings = yaml.safe_load(config)
    port = int(settings["http"]["listen"].rpartition(":")[2])
    service = documents["Service"]["spec"]["ports"]
    assert port in [entry["port"] for entry in service]
    if "StatefulSet" not in documents:
        return
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {entry["name"]: entry["containerPort"] for entry in container["ports"]}["http"] == port
    routes = (ROOT / "slackwater" / "monitoring" / "http.py").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f'Route("{container[probe]["httpGet"]["path"]}"' in routes
    endpoint = documents["ServiceMonitor"]["spec"]["endpoints"][0]
    assert f'Route("{endpoint["path"]}"' in routes
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(Path(container["args"][-1]).parent) in mounts
    for key in ("path", "checkpoint"):
        place = settings["sink"][key]
        assert (
            "://" in place
            or any(place.startswith(mount) for mount in mounts)
            or (overlay.name != "local")
        )
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert (
        pod["terminationGracePeriodSeconds"]
        >= load_settings(DEPLOY / "kubernetes" / "base" / "slackwater.yaml", {}).epoch.target_time
        / 1_000
    )


def all_metrics() -> set[str]:
    metrics = Metrics()
    metrics.registry.register(StatusCollector(list))
    names = set()
    for family in metrics.registry.collect():
        endings = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_sum", "_count"),
            "info": ("_info",),
        }
        names |= {family.name + ending for ending in endings.get(family.type, ("",))}
    return names


def named_metrics(expression: str) -> set[str]:
    """Return the program's metrics in an expression, which must parse."""
    promql_parser.parse(expression)
    return set(re.findall(r"slackwater_\w+", expression))


def test_alerts_parse_name_known_metrics_and_have_a_page_in_the_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    in_program = all_metrics()
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) >= 5
    for rule in alerts:
        assert named_metrics(rule["expr"]) <= in_program, rule["alert"]
        assert re.search(rf"^## {rule['alert']}$", runbook, re.MULTILINE), rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_the_dashboard_names_known_metrics_and_shows_each() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "slackwater.json").read_text())
    expressions = [
        target["expr"].replace("$pipeline", ".*")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    shown = set().union(*map(named_metrics, expressions))
    in_program = all_metrics()
    assert shown <= in_program
    # The low watermark is there as its lag, the owner in an alert.
    left = {
        name.removesuffix("_bucket") for name in in_program if not name.endswith(("_sum", "_count"))
    }
    left -= {name.removesuffix("_bucket") for name in shown}
    assert left == {
        "slackwater_build_info",
        "slackwater_is_owner",
        "slackwater_low_watermark_timestamp_seconds",
    }


def test_the_image_holds_what_its_files_name() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    called = re.findall(r"bin/slackwater ([a-z-]+)", dockerfile)
    assert called == ["jars", "class-archive"]
    assert set(called) <= set(typer.main.get_command(app).list_commands(None))  # type: ignore[attr-defined]
