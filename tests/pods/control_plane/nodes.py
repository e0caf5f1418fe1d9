"""Nodes that run nothing: each reports its pods as its kubelet would, with a kubelet's rights."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from tests.pods.control_plane.api import Api, Object, RefusedError
from tests.pods.control_plane.servers import ControlPlane

# As the kubelet of a node with much memory.
_CAPACITY: Final = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
_HEARTBEAT_S: Final = 10
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_NUMBERS: Final = itertools.count(11)


class Node:
    """A node that is registered and sends heartbeats, with a kubelet's rights.

    Args:
        api: a client with the kubelet's certificate.
        name: its name.
    """

    def __init__(self, api: Api, name: str) -> None:
        self.api, self.name = api, name
        self.stopped = threading.Event()
        self._threads = [self.thread(self._beat)]

    def start(self) -> None:
        """Register the node, and start reporting."""
        labels = {"kubernetes.io/hostname": self.name}
        self.api.create("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        self.api.create(_LEASES, {"metadata": {"name": self.name}, "spec": self._lease()})
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop reporting, and wait for what is under way."""
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def thread(self, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=f"{self.name} {run.__name__}", daemon=True)

    def watch(self, seconds: int) -> Iterator[tuple[str, Object]]:
        """Yield the node's pods and what happens to them, for some seconds."""
        yield from self.api.watch(
            "/api/v1/pods", seconds, fieldSelector=f"spec.nodeName={self.name}"
        )

    def _lease(self) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}

    def _beat(self) -> None:
        while True:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            ready |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
            status = {"conditions": [ready], "capacity": _CAPACITY, "allocatable": _CAPACITY}
            with suppress(RefusedError, OSError):
                self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
                self.api.patch(f"{_LEASES}/{self.name}", {"spec": self._lease()})
            if self.stopped.wait(_HEARTBEAT_S):
                return


class PretendingNode(Node):
    """A node whose pods are Running as soon as it has them, and Ready unless they are held back.

    Attributes:
        are_ready: while it is not set, pods that start are not ready.
        may_end: while it is not set, pods that were deleted go on.
    """

    def __init__(self, api: Api, name: str) -> None:
        super().__init__(api, name)
        self.are_ready, self.may_end = threading.Event(), threading.Event()
        self.are_ready.set()
        self.may_end.set()
        self._reported: dict[str, bool] = {}
        self._threads.append(self.thread(self._run))

    def _run(self) -> None:
        while not self.stopped.is_set():
            # A new watch each second, so that pods that are held back are looked at again.
            with suppress(RefusedError, OSError):
                for change, pod in self.watch(1):
                    if change != "DELETED":
                        self._report(pod)

    def _report(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        uid: str = metadata["uid"]
        if "deletionTimestamp" in metadata:
            if self.may_end.is_set():
                self.api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            return
        ready = self.are_ready.is_set()
        if self._reported.get(uid) not in (True, ready):
            address = pod["status"].get("podIP") or f"10.1.0.{next(_NUMBERS)}"
            body = {"metadata": {"uid": uid}, "status": running(pod, address, ready=ready)}
            self.api.patch(f"{path}/status", body)
            self._reported[uid] = ready


def running(pod: Object, address: str, *, ready: bool) -> Object:
    """Return the status of a pod whose containers run."""
    names = ["Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"]
    conditions = [
        {
            "type": name,
            "status": str(ready or name not in ("ContainersReady", "Ready")),
            "lastTransitionTime": _now(),
        }
        for name in names
    ]
    containers: list[dict[str, Any]] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": _now()}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _now(),
        "conditions": conditions,
        "containerStatuses": containers,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def pretending_node(plane: ControlPlane, name: str) -> Iterator[PretendingNode]:
    """Have a node for the time of the context."""
    node = PretendingNode(plane.client(f"system:node:{name}", "system:nodes"), name)
    node.start()
    try:
        yield node
    finally:
        node.stop()
