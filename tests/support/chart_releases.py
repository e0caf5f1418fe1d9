"""A release of the chart by Helm on a control plane: how its pods are made, evicted and updated."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import helm_python
import pytest
import yaml

from tests.pods.control_plane.api import Api, Kubectl, KubectlError, Object, RefusedError
from tests.pods.control_plane.nodes import PretendingNode
from tests.pods.kubelet import wait_until
from tests.support.charts import CHART

RELEASE: Final = "orders"
NAME: Final = "orders-slackwater"
DRIVERS: Final = "app.kubernetes.io/component=driver"
EXECUTORS: Final = "app.kubernetes.io/component=executor"
_SETTLED_S_MAX: Final = 180
# The controllers do within a second what they do.
_LOOK_AGAIN_S: Final = 5


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until the controllers have made something so.

    Raises:
        TimeoutError: it does not.
    """
    wait_until(holds, what, _SETTLED_S_MAX)


def shown(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


class Release:
    """A release in a namespace, and the objects that come of it.

    Args:
        kubectl: in the namespace, of an administrator.
        admin: the same one's client.
        kubeconfig: the same one's file.
        nodes: where pods are placed.
    """

    def __init__(
        self, kubectl: Kubectl, admin: Api, kubeconfig: Path, nodes: list[PretendingNode]
    ) -> None:
        self.kubectl, self.admin, self.nodes = kubectl, admin, nodes
        self.namespace = kubectl.namespace
        self.path = f"/api/v1/namespaces/{self.namespace}"
        self._helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=self.namespace)

    def install(self, values: dict[str, Any]) -> None:
        """Install the chart, and wait for its drivers."""
        self._helm.install(CHART, RELEASE, values, namespace=self.namespace)
        self.wait_for_drivers()

    def upgrade(self, values: dict[str, Any]) -> None:
        """Upgrade the release."""
        self._helm.upgrade(CHART, RELEASE, values, namespace=self.namespace)

    def uninstall(self) -> None:
        """Remove the release, and close the connection."""
        self._helm.uninstall(RELEASE)
        self._helm.close()

    def wait_for_drivers(self) -> None:
        """Wait until the StatefulSet is up to date and ready."""
        timeout = f"--timeout={_SETTLED_S_MAX}s"
        self.kubectl("rollout", "status", f"statefulset/{NAME}", timeout)

    def generation(self) -> int:
        """Return which version of its specification the StatefulSet has."""
        metadata = self.kubectl.json("get", "statefulset", NAME)["metadata"]
        return int(metadata["generation"])

    def pods(self, selector: str) -> dict[str, Object]:
        """Return the pods that a selector selects, by name."""
        items = self.admin.get(f"{self.path}/pods", labelSelector=selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def budget(self) -> Object:
        """Return what the disruption controller says of the budget."""
        path = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets/{NAME}"
        status: Object = self.admin.get(path).get("status", {})
        return status

    def evict(self, name: str) -> str:
        """Evict a pod, as a drain of its node does; return the refusal, or an empty text."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            self.admin.create(f"{self.path}/pods/{name}/eviction", eviction)
        except RefusedError as error:
            return str(error)
        return ""

    def make_executor(self, driver: str, number: int) -> str:
        """Make an executor's pod as Spark's driver does, with the driver's rights; return its name.

        Spark adds its image, its limits and its owner to the chart's template.
        """
        token = self.kubectl("create", "token", NAME).strip()
        config = self.kubectl.json("get", "configmap", NAME)
        pod: Object = yaml.safe_load(config["data"]["executor.yaml"])
        name = f"{driver}-exec-{number}"
        owner = self.pods(DRIVERS)[driver]["metadata"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": driver, "uid": owner["uid"]}
        pod["metadata"] |= {"name": name, "ownerReferences": [{**reference, "controller": True}]}
        pod["spec"]["restartPolicy"] = "Never"
        [container] = pod["spec"]["containers"]
        limits = {"cpu": "1", "memory": "1Gi"}
        container |= {"image": "slackwater", "resources": {"limits": limits}}
        self.admin.with_token(token).create(f"{self.path}/pods", pod)
        return name

    def hold(self, *, ready: bool | None = None, end: bool | None = None) -> None:
        """Say whether new pods become ready from now on, and whether deleted ones end."""
        for node in self.nodes:
            for event, value in ((node.are_ready, ready), (node.may_end, end)):
                if value is not None:
                    (event.set if value else event.clear)()


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return {"Ready": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()


def show_eviction(release: Release) -> None:
    """Show that drivers are evicted one after the other, and that executors are not counted.

    The release has two drivers.
    """
    first, second = f"{NAME}-1", f"{NAME}-0"
    executors = [release.make_executor(second, number) for number in (1, 2)]
    until(lambda: all(map(is_ready, release.pods(EXECUTORS).values())), "executors that run")
    until(lambda: release.budget().get("disruptionsAllowed") == 1, "a budget that allows one")
    budget = release.budget()
    assert (budget["expectedPods"], budget["currentHealthy"]) == (2, 2), budget
    shown("the disruption controller counts two drivers, and not their two executors")
    assert not release.evict(executors[1])
    until(lambda: executors[1] not in release.pods(EXECUTORS), "the end of an evicted executor")
    release.hold(ready=False, end=False)
    uid = release.pods(DRIVERS)[first]["metadata"]["uid"]
    assert not release.evict(first)
    refusal = release.evict(second)
    assert refusal.startswith("429 "), refusal
    shown(f"{first} evicted; {second} is refused while it ends: {refusal}")
    release.hold(end=True)
    until(lambda: _is_replaced(release, first, uid), f"another {first}")
    until(lambda: release.budget()["disruptionsAllowed"] == 0, "a budget that allows none")
    refusal = release.evict(second)
    assert refusal.startswith("429 "), refusal
    shown(f"{second} is refused while the new {first} is not ready")
    release.hold(ready=True)
    until(lambda: release.budget()["disruptionsAllowed"] == 1, "a budget that allows one")
    _show_drain(release, second, executors[0])


def _show_drain(release: Release, driver: str, executor: str) -> None:
    """Drain the node of a driver, whose executor goes with it."""
    pod = release.pods(DRIVERS)[driver]
    uid, where = pod["metadata"]["uid"], pod["spec"]["nodeName"]
    with pytest.raises(KubectlError, match="use --delete-emptydir-data"):
        release.kubectl("drain", where)
    release.kubectl("drain", where, "--delete-emptydir-data", "--timeout=180s")
    until(lambda: _is_replaced(release, driver, uid), f"another {driver}")
    until(lambda: executor not in release.pods(EXECUTORS), "the end of its executor")
    assert release.pods(DRIVERS)[driver]["spec"]["nodeName"] != where
    release.kubectl("uncordon", where)
    release.wait_for_drivers()
    shown(f"kubectl drain moves {driver} to another node; its executor is collected as garbage")


def show_update(release: Release, values: dict[str, Any]) -> None:
    """Show that new settings replace one driver after the other, and that others replace none.

    Args:
        release: has two drivers and the same values.
        values: those of the release.
    """
    before = release.pods(DRIVERS)
    last, first = f"{NAME}-1", f"{NAME}-0"
    release.make_executor(first, 1)
    until(lambda: all(map(is_ready, release.pods(EXECUTORS).values())), "an executor that runs")
    generation = release.generation()
    release.upgrade(values)
    assert release.generation() == generation, "an upgrade without changes changes the StatefulSet"
    settings = {**values["settings"], "epoch": {"target_time": "45s"}}
    release.hold(ready=False)
    release.upgrade({**values, "settings": settings})
    assert release.generation() == generation + 1, "new settings leave the StatefulSet as it was"
    uids = {name: pod["metadata"]["uid"] for name, pod in before.items()}
    until(lambda: _is_replaced(release, last, uids[last]), f"another {last}")
    time.sleep(_LOOK_AGAIN_S)
    there = release.pods(DRIVERS)
    assert there[first]["metadata"]["uid"] == uids[first], "both drivers are replaced at once"
    assert not is_ready(there[last])
    assert release.pods(EXECUTORS)
    require_endpoints(release)
    release.hold(ready=True)
    release.wait_for_drivers()
    after = release.pods(DRIVERS)
    for name, uid in uids.items():
        metadata = after[name]["metadata"]
        assert metadata["uid"] != uid, name
        sums = [
            pod["metadata"]["annotations"]["checksum/settings"]
            for pod in (before[name], after[name])
        ]
        assert sums[0] != sums[1], name
    shown(f"new settings replace {last}, and {first} only after the new {last} is ready")


def require_endpoints(release: Release) -> None:
    """Assert that the Service has the drivers' addresses, ready or not, and no others."""
    slices = release.admin.get(
        f"/apis/discovery.k8s.io/v1/namespaces/{release.namespace}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={NAME}",
    )["items"]
    listed = {
        address
        for each in slices
        for endpoint in each["endpoints"] or []
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }
    addresses = {pod["status"]["podIP"] for pod in release.pods(DRIVERS).values()}
    assert listed == addresses, (listed, addresses)


def show_deletion(release: Release) -> None:
    """Show that a driver that is deleted comes again, and that its executors go with it."""
    driver = f"{NAME}-0"
    own, other = (release.make_executor(f"{NAME}-{number}", 1) for number in (0, 1))
    until(lambda: all(map(is_ready, release.pods(EXECUTORS).values())), "executors that run")
    uid = release.pods(DRIVERS)[driver]["metadata"]["uid"]
    release.kubectl("delete", "pod", driver, "--wait=false")
    until(lambda: _is_replaced(release, driver, uid), f"another {driver}")
    until(lambda: own not in release.pods(EXECUTORS), "the end of its executor")
    assert other in release.pods(EXECUTORS), "the executor of the other driver is deleted"
    shown(f"{driver} is deleted and comes again; its executor goes, that of the other stays")
    release.wait_for_drivers()


def _is_replaced(release: Release, name: str, uid: str) -> bool:
    pod = release.pods(DRIVERS).get(name)
    return pod is not None and pod["metadata"]["uid"] != uid and "podIP" in pod.get("status", {})
