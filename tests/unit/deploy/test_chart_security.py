"""What the chart's pods may do, and which pods its selectors select."""

import base64
import hashlib
from pathlib import PurePath
from typing import Any

import pytest
import yaml

from tests.support.charts import (
    EXAMPLES,
    Document,
    Pod,
    example,
    of_kind,
    pods,
    render,
    settings_of,
)
from tests.support.pod_security import violations

SHAPES = [path.stem for path in EXAMPLES]

_COMPONENT = "app.kubernetes.io/component"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pod_is_restricted_and_writes_only_to_its_volumes(shape: str) -> None:
    roles = set()
    for pod in pods(render(example(shape))):
        assert not violations(pod.spec), pod.role
        assert pod.container["securityContext"]["readOnlyRootFilesystem"]
        roles.add(pod.role)
    assert roles == {"driver", "test"} | (set() if shape == "one-pod" else {"executor"})


def test_the_check_itself_refuses_what_is_forbidden() -> None:
    [pod] = [pod for pod in pods(render(example("one-pod"))) if pod.role == "driver"]
    root = {**pod.spec, "securityContext": {"runAsUser": 0}, "hostNetwork": True}
    root["volumes"] = [{"name": "host", "hostPath": {"path": "/"}}]
    root["containers"] = [{"name": "x", "securityContext": {}, "ports": [{"hostPort": 1}]}]
    assert len(violations(root)) == 8


@pytest.mark.parametrize("shape", SHAPES)
def test_only_a_driver_that_makes_pods_has_a_token(shape: str) -> None:
    documents = render(example(shape))
    for pod in pods(documents):
        makes_pods = pod.role == "driver" and shape != "one-pod"
        assert pod.spec["automountServiceAccountToken"] is makes_pods
    for account in of_kind(documents, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("shape", ["executors", "spark-application"])
def test_executors_have_an_account_without_rights(shape: str) -> None:
    documents = render(example(shape))
    accounts = {pod.role: pod.spec.get("serviceAccountName") for pod in pods(documents)}
    assert accounts["driver"] != accounts["executor"]
    made = {account["metadata"]["name"] for account in of_kind(documents, "ServiceAccount")}
    assert {accounts["driver"], accounts["executor"]} == made
    [binding] = of_kind(documents, "RoleBinding")
    subjects = [(subject["name"], subject["namespace"]) for subject in binding["subjects"]]
    assert subjects == [(accounts["driver"], "cdc")]
    [role] = of_kind(documents, "Role")
    resources = {name for rule in role["rules"] for name in rule["resources"]}
    assert resources == {"pods"}


def test_a_single_pod_has_no_rights_at_all_and_no_secret() -> None:
    documents = render(example("one-pod"))
    for kind in ("Role", "RoleBinding", "Secret"):
        assert not of_kind(documents, kind)
    assert "slackwater-spark" not in yaml.safe_dump_all(documents)


OWN_SECRET = {"name": "shared", "key": "text"}


@pytest.mark.parametrize("own", [{}, OWN_SECRET], ids=["of the chart", "of the user's own"])
@pytest.mark.parametrize("shape", ["executors", "spark-application"])
def test_driver_and_executors_read_their_secret_from_the_same_mounted_file(
    shape: str, own: dict[str, str]
) -> None:
    documents = render(example(shape, sparkSecret=own))
    conf = yaml.safe_load(settings_of(documents))["spark"]["conf"]
    file = PurePath(conf["spark.authenticate.secret.file"])
    name, key = ("shared", "text") if own else ("orders-slackwater-spark", "secret")
    for pod in pods(documents):
        if pod.role == "test":
            continue
        mounts = {mount["mountPath"]: mount for mount in pod.container["volumeMounts"]}
        mount = mounts[str(file.parent)]
        assert mount["readOnly"]
        [volume] = [each for each in pod.spec["volumes"] if each["name"] == mount["name"]]
        assert volume["secret"] == {
            "secretName": name,
            "defaultMode": 0o440,
            "items": [{"key": key, "path": file.name}],
        }
        assert "AUTH_SECRET" not in str(pod.container["env"])
    assert [s["metadata"]["name"] for s in of_kind(documents, "Secret")] == ([] if own else [name])


def test_the_charts_own_secret_is_long_new_each_time_and_starts_the_driver_again() -> None:
    """Without a cluster to ask; an upgrade by Helm keeps what is there."""

    def rendered() -> tuple[str, str]:
        documents = render(example("executors"))
        [secret] = of_kind(documents, "Secret")
        [drivers] = of_kind(documents, "StatefulSet")
        annotations = drivers["spec"]["template"]["metadata"]["annotations"]
        return secret["data"]["secret"], annotations["checksum/spark-secret"]

    (secret, checksum), (other, other_checksum) = rendered(), rendered()
    assert len(base64.b64decode(secret)) >= 32
    assert secret != other
    for text, sha in ((secret, checksum), (other, other_checksum)):
        assert hashlib.sha256(text.encode()).hexdigest() == sha


def selectors(documents: list[Document]) -> list[tuple[str, dict[str, str]]]:
    """Return every selector of the manifests, with the name of what has it."""
    every: list[tuple[str, dict[str, str]]] = []

    def collect(name: str, value: Any) -> None:
        if isinstance(value, list):
            for entry in value:
                collect(name, entry)
        elif isinstance(value, dict):
            for key, entry in value.items():
                # An empty one selects the namespace, by intention.
                if key in ("selector", "podSelector") and entry:
                    every.append((name, entry.get("matchLabels", entry)))
                else:
                    collect(name, entry)

    for document in documents:
        collect(f"{document['kind']} {document['metadata']['name']}", document.get("spec", {}))
    return every


@pytest.mark.parametrize("shape", SHAPES)
def test_each_selector_selects_one_component_of_its_own_release(shape: str) -> None:
    documents = render(example(shape, serviceMonitor={"enabled": True}))
    others = pods(render(example(shape), release="customers"))
    every = selectors(documents)
    assert len(every) >= 4
    for name, selector in every:
        selected = {pod.role for pod in pods(documents) if _selects(selector, pod)}
        # The ServiceMonitor selects the Service, which has the driver's labels.
        assert len(selected) == 1, name
        assert not [pod for pod in others if _selects(selector, pod)], name


def test_the_disruption_budget_does_not_count_executors() -> None:
    documents = render(example("executors"))
    [budget] = of_kind(documents, "PodDisruptionBudget")
    labels = budget["spec"]["selector"]["matchLabels"]
    assert [pod.role for pod in pods(documents) if _selects(labels, pod)] == ["driver"]
    # A driver of the operator's has no controller whose pods Kubernetes could count.
    assert not of_kind(render(example("spark-application")), "PodDisruptionBudget")


@pytest.mark.parametrize("shape", ["executors", "spark-application"])
def test_driver_and_executors_reach_each_others_ports_and_no_others(shape: str) -> None:
    documents = render(example(shape))
    policies = {
        policy["spec"]["podSelector"]["matchLabels"][_COMPONENT]: policy["spec"]
        for policy in of_kind(documents, "NetworkPolicy")
    }
    conf = yaml.safe_load(settings_of(documents))["spark"]["conf"]
    # The operator's Spark sets 7078 itself.
    driver_port = int(conf.get("spark.driver.port", 7078))
    driver_blocks = int(conf["spark.driver.blockManager.port"])
    blocks = int(conf["spark.blockManager.port"])
    assert _between(policies, "executor", "driver") == {driver_port, driver_blocks}
    assert _between(policies, "driver", "executor") == {blocks}
    assert _between(policies, "executor", "executor") == {blocks}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_is_open_to_the_own_namespace_and_whom_the_values_name(shape: str) -> None:
    elsewhere = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mon"}}}
    for named, peers in (({}, [{"podSelector": {}}]), ({"httpFrom": [elsewhere]}, [elsewhere])):
        policy, *_ = of_kind(render(example(shape, networkPolicy=named)), "NetworkPolicy")
        [page] = [rule for rule in policy["spec"]["ingress"] if {"port": 8080} in rule["ports"]]
        assert page["from"] == peers


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pod_can_not_fill_its_nodes_disk(shape: str) -> None:
    own = [pod for pod in pods(render(example(shape, tmpSize="1Gi"))) if pod.role != "test"]
    for pod in own:
        [tmp] = [volume for volume in pod.spec["volumes"] if volume["name"] == "tmp"]
        assert tmp["emptyDir"] == {"sizeLimit": "1Gi"}


def test_an_owner_and_its_standby_are_spread_over_nodes() -> None:
    documents = render(example("executors"))
    [driver] = [pod for pod in pods(documents) if pod.role == "driver"]
    [spread] = driver.spec["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    selected = spread["labelSelector"]["matchLabels"]
    assert [pod.role for pod in pods(documents) if _selects(selected, pod)] == ["driver"]
    own = [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    others = render(example("executors", topologySpreadConstraints=own))
    [driver] = [pod for pod in pods(others) if pod.role == "driver"]
    assert driver.spec["topologySpreadConstraints"] == own


def test_ports_for_traces_stores_and_the_api_are_open() -> None:
    documents = render(example("executors", networkPolicy={"egressPorts": [443, 4318, 5433]}))
    driver, executor = of_kind(documents, "NetworkPolicy")
    assert {53, 443, 4318, 5433, 6443} <= _outward(driver["spec"])
    assert {53, 443, 4318, 5433} <= _outward(executor["spec"])
    assert 6443 not in _outward(executor["spec"])


def _outward(policy: dict[str, Any]) -> set[int]:
    return {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}


def _between(policies: dict[str, Any], source: str, target: str) -> set[int]:
    """Return the ports at which a component may reach another, by the rules of both."""
    leaving = _ports(policies[source]["egress"], "to", target)
    arriving = _ports(policies[target]["ingress"], "from", source)
    assert leaving == arriving, (source, target)
    return leaving


def _ports(rules: list[dict[str, Any]], side: str, component: str) -> set[int]:
    return {
        port["port"]
        for rule in rules
        for peer in rule.get(side, [])
        if peer["podSelector"].get("matchLabels", {}).get(_COMPONENT) == component
        for port in rule["ports"]
    }


def _selects(selector: dict[str, str], pod: Pod) -> bool:
    return selector.items() <= pod.labels.items()
