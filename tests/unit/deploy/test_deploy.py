"""The files in deploy/ name only what the program has; the chart has tests of its own."""

import json
import re
from collections.abc import Iterator

import promql_parser
import typer
import yaml

from slackwater.cli import app
from slackwater.commands.jars import FORMATS
from slackwater.config.load import load_settings
from slackwater.monitoring.http_access import is_own, own_names
from slackwater.monitoring.metrics import Metrics, StatusCollector
from tests.support.repository import DEPLOY, DOCS, ROOT


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the files in deploy/ that set the program's variables, with these."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    yield "Dockerfile", dict(re.findall(r"(SLACKWATER_\w+)=(\S+)", dockerfile))
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    yield "compose", compose["services"]["slackwater"]["environment"]


def test_every_settings_file_and_variable_is_one_that_the_program_takes() -> None:
    for path in (DEPLOY / "slackwater.yaml", DEPLOY / "compose" / "slackwater.yaml"):
        load_settings(path, {})
    for name, environ in environments():
        ours = {key: value for key, value in environ.items() if key.startswith("SLACKWATER_")}
        assert ours, name
        load_settings(DEPLOY / "slackwater.yaml", ours)


def test_prometheus_asks_by_a_name_that_the_settings_have() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    names = own_names(load_settings(DEPLOY / "compose" / "slackwater.yaml", {}).http)
    targets = [
        t for job in prometheus["scrape_configs"] for t in job["static_configs"][0]["targets"]
    ]
    assert targets
    assert all(is_own(target, names) for target in targets)


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
    runbook = (DOCS / "runbook.md").read_text()
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


def copied_into_the_image() -> list[str]:
    """The paths of the repository that the Dockerfile copies."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE)
    return " ".join(lines).split()


def test_the_image_holds_what_its_files_name() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for name in copied_into_the_image():
        assert (ROOT / name).exists(), name
    called = re.findall(r"bin/slackwater ([a-z-]+)", dockerfile)
    assert called == ["jars", "class-archive"]
    # Without formats: all jars, so that no pod fetches any.
    assert "bin/slackwater jars /opt/slackwater/jars\n" in dockerfile
    assert {"delta", "iceberg", "kafka", "s3a", "gs", "abfss"} == set(FORMATS)
    assert set(called) <= set(typer.main.get_command(app).list_commands(None))  # type: ignore[attr-defined]


def test_a_build_is_sent_what_the_dockerfile_copies_and_nothing_else() -> None:
    """Neither an environment nor a checkout's own settings and credentials."""
    ignored, *others = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"
    ]
    assert ignored == "*"
    sent = [line.removeprefix("!") for line in others if line.startswith("!")]
    assert sent == sorted(copied_into_the_image())
    assert [line for line in others if not line.startswith("!")] == ["**/__pycache__"]


def test_images_are_named_by_exact_versions() -> None:
    """A floating tag is another program tomorrow."""
    texts = [path.read_text() for path in (DEPLOY / "Dockerfile", *DEPLOY.rglob("compose.yaml"))]
    texts += [path.read_text() for path in DOCS.glob("*.md")]
    named = re.findall(
        r"^ *image: (\S+)$|PYTHON_IMAGE=(\S+)|imagetools inspect ([^\s`]+)|^FROM ([^\s$]+)$",
        "\n".join(texts),
        re.MULTILINE,
    )
    images = ["".join(groups) for groups in named]
    assert len(images) > 6
    for image in images:
        assert re.search(r":v?\d+(\.\d+)+[^:/]*(@sha256:|$)", image), image
        version = image.partition(":")[2]
        parts = 2 if image.startswith("postgres:") else 3
        assert len(re.findall(r"\d+", version.partition("-")[0])) == parts, image


def test_the_compose_file_builds_that_image_and_mounts_what_exists() -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        if "build" in service:
            context = (DEPLOY / "compose" / service["build"]["context"]).resolve()
            assert context == ROOT, name
            assert (context / service["build"]["dockerfile"]) == DEPLOY / "Dockerfile", name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            here = source.startswith(".")
            assert (DEPLOY / "compose" / source).exists() if here else source in compose["volumes"]
