"""The chart on Kubernetes' control plane, with its pods on the stand-in kubelet."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from tests.pods.api_server import ADDRESS
from tests.pods.cluster import Drivers, MissingObjectError
from tests.pods.control_plane.api import Api, Kubectl, Object, RefusedError
from tests.pods.control_plane.nodes import Node
from tests.pods.control_plane.servers import ControlPlane, control_plane
from tests.pods.deployment import NAMESPACE, Deployment, jars_of_image
from tests.pods.kubelet import Kubelet
from tests.support.charts import of_kind, render, without_tests

_WATCH_S: Final = 30
_TOKEN_S: Final = 3_607
_NOT_ALLOWED, _NOT_THERE = 403, 404


class NodesObjects:
    """The objects of a control plane, as the kubelet of a node sees them.

    Args:
        node: whose pods are watched, and with whose rights.
        admin: for what no kubelet asks for.
    """

    def __init__(self, node: Node, admin: Api) -> None:
        self._node, self._admin = node, admin

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None if there is none for this node."""
        try:
            return self._node.api.get(_path(resource, namespace, name))
        except RefusedError as error:
            # The API server learns with a delay that a pod of this node names the object.
            if error.code in (_NOT_ALLOWED, _NOT_THERE):
                return None
            raise

    def select(self, resource: str, namespace: str, labels: str) -> list[Object]:
        """Return the objects of a namespace that a label selector selects."""
        items: list[Object] = self._admin.get(_path(resource, namespace), labelSelector=labels)[
            "items"
        ]
        return items

    def merge(self, resource: str, namespace: str, name: str, patch: Object) -> Object | None:
        """Change an object's status; return None if it is gone."""
        try:
            return self._node.api.patch(f"{_path(resource, namespace, name)}/status", patch)
        except RefusedError as error:
            if error.code == _NOT_THERE:
                return None
            raise

    def delete(self, resource: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete a pod, unless it is gone."""
        body = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._node.api.delete(_path(resource, namespace, name), body)
        except RefusedError as error:
            if error.code != _NOT_THERE:
                raise

    def watch(self, after: int) -> Iterator[tuple[int, str, str, Object] | None]:
        """Yield what happens to the node's pods."""
        seen: set[str] = set()
        while not self._node.stopped.is_set():
            with suppress(RefusedError, OSError):
                for change, pod in self._node.watch(_WATCH_S):
                    uid = pod["metadata"]["uid"]
                    # A new watch begins with the pods that are there.
                    name = "MODIFIED" if change == "ADDED" and uid in seen else change
                    seen.add(uid)
                    yield after, name, "pods", _without_token(pod)
            yield None


class NodesCluster:
    """A control plane, as the stand-in kubelet uses it."""

    def __init__(self, plane: ControlPlane, node: Node) -> None:
        self._plane, self._node = plane, node
        self.objects = NodesObjects(node, plane.admin())

    @property
    def asked(self) -> set[tuple[str, str, str]]:
        """What the chart's service accounts asked for, by the API server's audit log."""
        return {_request(event) for event in self._plane.audit()}

    @property
    def refused(self) -> list[str]:
        """What the chart's service accounts were refused, by the API server's audit log."""
        return [
            " ".join((*_request(event), event["requestURI"]))
            for event in self._plane.audit()
            if event["responseStatus"]["code"] == _NOT_ALLOWED
        ]

    def token(self, pod: Object) -> str:
        """Return a token of a pod's service account, which ends with the pod.

        Raises:
            MissingObjectError: the API server does not know yet that the pod is on this node.
        """
        metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        bound = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        request = {"spec": {"boundObjectRef": bound, "expirationSeconds": _TOKEN_S}}
        path = f"{_path('serviceaccounts', metadata['namespace'], account)}/token"
        try:
            token: str = self._node.api.create(path, request)["status"]["token"]
        except RefusedError as error:
            raise MissingObjectError(f"a token of {account}: {error}") from error
        return token


class _StatefulSet:
    """The drivers' StatefulSet, which Kubernetes' own controller keeps."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self._kubectl, self._name = kubectl, f"statefulset/{name}"

    def start(self) -> None:
        """Do nothing: the controller has started."""

    def stop(self) -> None:
        self._kubectl("scale", self._name, "--replicas=0")

    def roll(
        self, annotations: dict[str, str], is_ready: Callable[[str], bool], seconds_max: float
    ) -> None:
        patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        self._kubectl("patch", self._name, "--patch", yaml.safe_dump(patch))
        until = time.monotonic() + seconds_max
        while True:
            status = self._kubectl.json("get", self._name)
            if _is_rolled(status):
                return
            if time.monotonic() > until:
                raise TimeoutError(f"{self._name}: {status['status']}")
            time.sleep(0.5)


class _OnControlPlane(Deployment):
    """The chart on a control plane."""

    def __init__(self, plane: ControlPlane, node: Node, kubelet: Kubelet) -> None:
        super().__init__(NodesCluster(plane, node), kubelet)
        self._kubectl = Kubectl(plane.kubeconfig_of_admin(), NAMESPACE)

    def apply(self, values: dict[str, Any], store_url: str | None = None) -> Drivers:
        kubectl = self._kubectl
        kubectl("create", "namespace", NAMESPACE)
        enforce = "pod-security.kubernetes.io/enforce=restricted"
        kubectl("label", "namespace", NAMESPACE, enforce)
        if store_url is not None:
            secret = ["secret", "generic", "slackwater-state"]
            kubectl("create", *secret, "--from-literal", f"url={store_url}")
        documents = without_tests(render(values, namespace=NAMESPACE))
        kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))
        [drivers] = of_kind(documents, "StatefulSet")
        return _StatefulSet(kubectl, drivers["metadata"]["name"])


@contextmanager
def on_control_plane(folder: Path) -> Iterator[Deployment]:
    """Run a control plane with one node; the image has the jars of Delta.

    Args:
        folder: for roots, volumes and logs; every user has to reach it.
    """
    jars = jars_of_image(folder)
    data = folder / "control-plane"
    data.mkdir(mode=0o700)
    with control_plane(data, ADDRESS, 443) as plane, ExitStack() as stack:
        node = Node(plane.client("system:node:node-1", "system:nodes"), "node-1")
        node.start()
        stack.callback(node.stop)
        kubelet = Kubelet(NodesCluster(plane, node), folder, jars, plane.authority.certificate)
        stack.callback(kubelet.stop)
        kubelet.start()
        yield _OnControlPlane(plane, node, kubelet)


def _path(resource: str, namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{resource}" + (f"/{name}" if name else "")


def _request(event: Object) -> tuple[str, str, str]:
    """Return the account, verb and resource of a request in the audit log."""
    account = event["user"]["username"].rpartition(":")[2]
    return account, event["verb"], event.get("objectRef", {}).get("resource", event["requestURI"])


def _is_rolled(stateful_set: Object) -> bool:
    """Return whether all pods of a StatefulSet are new and ready."""
    status, replicas = stateful_set["status"], stateful_set["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == stateful_set["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("readyReplicas") == replicas
    )


def _without_token(pod: Object) -> Object:
    """Return a pod without the volume of its token, which the stand-in kubelet brings itself."""
    spec = pod["spec"]
    tokens = [volume["name"] for volume in spec.get("volumes", []) if "projected" in volume]
    spec["volumes"] = [each for each in spec.get("volumes", []) if each["name"] not in tokens]
    for container in spec["containers"]:
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [each for each in mounts if each["name"] not in tokens]
    return pod
