"""The stand-in for Kubernetes' API: what the chart's Role allows on it, and how it selects."""

import pytest

from tests.pods.api_server import Cluster, Request
from tests.pods.objects import Objects, is_selected
from tests.support.charts import example, of_kind, render

DRIVER, EXECUTOR = "orders-slackwater", "orders-slackwater-executor"


@pytest.fixture(scope="module", params=["executors", "spark-application"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Return a cluster with the chart's rights."""
    cluster = Cluster()
    documents = render(example(request.param))
    for kind, resource in (("Role", "roles"), ("RoleBinding", "rolebindings")):
        for document in of_kind(documents, kind):
            cluster.objects.create(resource, "cdc", document)
    return cluster


@pytest.mark.parametrize(
    ("account", "verb", "resource", "namespace", "allowed"),
    [
        (DRIVER, "create", "pods", "cdc", True),
        (DRIVER, "watch", "pods", "cdc", True),
        (DRIVER, "deletecollection", "pods", "cdc", True),
        (DRIVER, "get", "secrets", "cdc", False),
        (DRIVER, "patch", "pods", "cdc", False),
        (DRIVER, "create", "configmaps", "cdc", False),
        (DRIVER, "delete", "persistentvolumeclaims", "cdc", False),
        (DRIVER, "create", "services", "cdc", False),
        (DRIVER, "create", "pods", "default", False),
        (DRIVER, "create", "rolebindings", "cdc", False),
        (EXECUTOR, "get", "pods", "cdc", False),
        ("default", "get", "pods", "cdc", False),
        ("", "get", "pods", "cdc", False),
    ],
)
def test_the_role_allows_what_sparks_driver_does_and_no_more(
    cluster: Cluster, account: str, verb: str, resource: str, namespace: str, *, allowed: bool
) -> None:
    assert cluster.is_allowed(Request(account, verb, resource, namespace, "")) is allowed


@pytest.mark.parametrize(
    ("labels", "selected"),
    [
        ("", True),
        ("spark-role=executor,spark-app-selector==spark-1", True),
        ("spark-role=driver", False),
        ("spark-exec-id in (1, 2)", True),
        ("spark-role=executor,spark-exec-id notin (1,2)", False),
        ("spark-exec-inactive!=true", True),
        ("!spark-exec-inactive", True),
        ("spark-exec-inactive", False),
    ],
)
def test_selectors_are_those_of_kubernetes(labels: str, *, selected: bool) -> None:
    own = {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-exec-id": "2"}
    assert is_selected({"metadata": {"name": "x", "labels": own}}, labels) is selected


def test_executors_go_with_the_pod_of_their_driver() -> None:
    objects = Objects()
    driver = objects.create("pods", "cdc", {"metadata": {"name": "driver"}, "spec": {}})
    owned = {"ownerReferences": [{"uid": driver["metadata"]["uid"]}]}
    for name, metadata in (("mine", owned), ("another", {})):
        objects.create("pods", "cdc", {"metadata": {"name": name, **metadata}, "spec": {}})
    objects.delete("pods", "cdc", "driver", grace_s=0)
    assert "deletionTimestamp" in objects.get("pods", "cdc", "mine")["metadata"]  # type: ignore[index]
    assert "deletionTimestamp" not in objects.get("pods", "cdc", "another")["metadata"]  # type: ignore[index]
    changes = [(change, body["metadata"]["name"]) for _, change, _, body in objects.events[3:]]
    assert changes == [("DELETED", "driver"), ("MODIFIED", "mine")]
