"""The chart on the stand-ins: its objects, and the pods that come from them."""

import base64
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.pods.api_server import Cluster, serving
from tests.pods.cluster import AnyCluster, Drivers
from tests.pods.kubelet import Kubelet, RunningPod
from tests.pods.stateful_set import StatefulSet
from tests.support.charts import of_kind, render

NAMESPACE = "cdc"
_RESOURCES = {
    "ConfigMap": "configmaps",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
}


class Deployment(ABC):
    """The chart on a cluster."""

    def __init__(self, cluster: AnyCluster, kubelet: Kubelet) -> None:
        self.cluster, self.kubelet = cluster, kubelet

    @abstractmethod
    def apply(self, values: dict[str, Any], store_url: str | None = None) -> Drivers:
        """Make the chart's objects, and return the controller of its drivers.

        Args:
            values: the chart's.
            store_url: of the metadata store, for a Secret; None if the values have none.
        """

    def pods(self, component: str) -> list[RunningPod]:
        """Return the running pods of a component."""
        bodies = self.cluster.objects.select(
            "pods", NAMESPACE, f"app.kubernetes.io/component={component}"
        )
        running = [self.kubelet.pods.get(body["metadata"]["uid"]) for body in bodies]
        return [pod for pod in running if pod is not None]

    def executors(self) -> list[RunningPod]:
        """Return the executors of the owner that run; the standby has as many."""
        uid = self.owner().body["metadata"]["uid"]
        return [
            pod
            for pod in self.pods("executor")
            if pod.is_running()
            and uid in [owner["uid"] for owner in pod.body["metadata"]["ownerReferences"]]
        ]

    def owner(self) -> RunningPod:
        """Return the pod that owns the pipeline: a standby is not ready for those who just ask."""
        [owner] = [pod for pod in self.pods("driver") if pod.get("/readyz")[0] == 200]
        return owner

    def has_owner(self) -> bool:
        return len([pod for pod in self.pods("driver") if pod.get("/readyz")[0] == 200]) == 1


class _OnStandIns(Deployment):
    """The chart on a stand-in for the API server."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet) -> None:
        super().__init__(cluster, kubelet)
        self._cluster = cluster

    def apply(self, values: dict[str, Any], store_url: str | None = None) -> Drivers:
        documents = render(values, namespace=NAMESPACE)
        objects = self._cluster.objects
        if store_url is not None:
            url = base64.b64encode(store_url.encode()).decode()
            secret = {"metadata": {"name": "slackwater-state"}, "data": {"url": url}}
            objects.create("secrets", NAMESPACE, secret)
        for document in documents:
            if (resource := _RESOURCES.get(document["kind"])) is not None:
                objects.create(resource, NAMESPACE, document)
        [drivers] = of_kind(documents, "StatefulSet")
        return StatefulSet(self._cluster, drivers, NAMESPACE)


def jars_of_image(folder: Path) -> Path:
    """Fetch the jars of Delta, which the image has among others; return their folder."""
    jars = folder / "jars"
    command = [sys.executable, "-m", "slackwater.cli", "jars", str(jars), "delta"]
    subprocess.run(command, check=True, capture_output=True)
    return jars


@contextmanager
def stand_ins(folder: Path) -> Iterator[Deployment]:
    """Run an API server and a kubelet; the image has the jars of Delta.

    Args:
        folder: for roots, volumes and logs; every user has to reach it.
    """
    jars = jars_of_image(folder)
    cluster = Cluster()
    with serving(cluster, folder) as authority:
        kubelet = Kubelet(cluster, folder, jars, authority)
        kubelet.start()
        try:
            yield _OnStandIns(cluster, kubelet)
        finally:
            kubelet.stop()
