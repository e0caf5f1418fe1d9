"""Renders the Helm chart, by Helm's own library, and lists the pods that come from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import helm_python
import yaml

from tests.support.repository import DEPLOY

CHART = DEPLOY / "chart"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))

Document = dict[str, Any]

# Values for all that the examples leave as it is.
EVERYTHING: dict[str, Any] = {
    "image": {"digest": "sha256:" + "a" * 64, "pullSecrets": ["registry"]},
    "fullnameOverride": "changes",
    "env": [{"name": "SPANNER_EMULATOR_HOST", "value": "emulator:9010"}],
    "driver": {"cpuRequest": "500m"},
    "executor": {"cpuRequest": "500m"},
    "serviceAccount": {"name": "reader", "annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    "sparkSecret": {"name": "spark", "key": "secret"},
    "http": {
        "hosts": ["pipelines.example"],
        "tokenSecret": {"name": "page", "key": "token"},
        "tlsSecret": "page-tls",
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "runbookUrl": "https://wiki.example.com/runbook.html",
    },
    "nodeSelector": {"pool": "spark"},
    "tolerations": [{"key": "spark", "operator": "Exists"}],
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {}}}
            ]
        }
    },
    "priorityClassName": "high",
    "podAnnotations": {"team": "data"},
    "podLabels": {"team": "data"},
}


def example(name: str, **changes: Any) -> dict[str, Any]:
    """Return the values of an example, with other values for some top-level keys.

    A dictionary is merged into the example's, one level deep.
    """
    text = (CHART / "examples" / f"{name}.yaml").read_text()
    values: dict[str, Any] = yaml.load(text, yaml.CSafeLoader)
    for key, value in changes.items():
        former = values.get(key)
        if isinstance(former, dict) and isinstance(value, dict):
            values[key] = {**former, **value}
        else:
            values[key] = value
    return values


def render(
    values: dict[str, Any], *, release: str = "orders", namespace: str = "cdc"
) -> list[Document]:
    """Return the manifests that `helm template` prints.

    Raises:
        HelmError: the values do not fit the schema, or the chart refuses them.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=release, namespace=namespace)
    return [
        document
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        # As safe_load_all does, and not in Python.
        for document in yaml.load_all(text, yaml.CSafeLoader)
        if document
    ]


def without_tests(documents: list[Document]) -> list[Document]:
    """Return the manifests that `helm template --skip-tests` prints."""
    return [each for each in documents if "helm.sh/hook" not in annotations_of(each)]


def annotations_of(document: Document) -> dict[str, str]:
    annotations: dict[str, str] = document["metadata"].get("annotations") or {}
    return annotations


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def settings_of(documents: list[Document]) -> str:
    """Return the settings file that the pods mount."""
    [config] = of_kind(documents, "ConfigMap")
    return str(config["data"]["slackwater.yaml"])


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that comes from the chart.

    Attributes:
        role: driver, executor or test.
        labels: its labels.
        spec: its specification.
    """

    role: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        [container] = self.spec["containers"]
        return dict(container)


def pods(documents: list[Document]) -> list[Pod]:
    """Return the driver's pod, the executors' and that of `helm test`."""
    return [
        Pod(
            template["metadata"]["labels"]["app.kubernetes.io/component"],
            template["metadata"]["labels"],
            template["spec"],
        )
        for template in _templates(documents)
    ]


def _templates(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        match document["kind"]:
            case "StatefulSet":
                yield document["spec"]["template"]
            case "SparkApplication":
                for role in ("driver", "executor"):
                    yield document["spec"][role]["template"]
            case "Pod":
                yield document
            case "ConfigMap" if "executor.yaml" in document["data"]:
                yield yaml.safe_load(document["data"]["executor.yaml"])
