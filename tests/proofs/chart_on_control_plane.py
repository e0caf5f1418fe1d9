"""The chart on Kubernetes' own control plane: etcd, API server, controllers and scheduler.

`python -m tests.proofs.chart_on_control_plane` builds them, once, which takes eight minutes of
processor time, and shows what they say of each shape in a namespace that enforces `restricted`:
whether each manifest is accepted, what the service accounts may do, and how pods are made, evicted,
updated and removed. No pod runs: two nodes report their pods as kubelets would. It needs Go, and
takes two minutes.
"""

import argparse
import json
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.pods.control_plane.api import Api, Kubectl, KubectlError, Object
from tests.pods.control_plane.definitions import PROMETHEUS_OPERATOR, SPARK_OPERATORS, Module
from tests.pods.control_plane.nodes import PretendingNode, pretending_node
from tests.pods.control_plane.programs import VERSION
from tests.pods.control_plane.servers import control_plane
from tests.support.chart_releases import (
    NAME,
    RELEASE,
    Release,
    show_deletion,
    show_eviction,
    show_update,
    shown,
    until,
)
from tests.support.charts import (
    EVERYTHING,
    EXAMPLES,
    Document,
    example,
    of_kind,
    pods,
    render,
    without_tests,
)

SHAPES: Final = [path.stem for path in EXAMPLES]
CASES: Final[dict[str, dict[str, Any]]] = {
    "example": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "everything": EVERYTHING,
}

MAY: Final[dict[str, tuple[str, ...]]] = {
    "pods": ("create", "get", "list", "watch", "delete", "deletecollection"),
}
MAY_NOT: Final[dict[str, tuple[str, ...]]] = {
    "secrets": ("get", "list", "watch", "create", "delete"),
    "pods": ("update", "patch"),
    "configmaps": ("get", "create", "update", "patch", "delete", "deletecollection"),
    "services": ("get", "create", "update", "patch", "delete", "deletecollection"),
    "persistentvolumeclaims": ("get", "create", "update", "patch", "delete", "deletecollection"),
    "pods/exec": ("create",),
    "pods/eviction": ("create",),
    "serviceaccounts": ("get", "create", "impersonate"),
    "serviceaccounts/token": ("create",),
    "roles.rbac.authorization.k8s.io": ("get", "create", "escalate", "bind"),
    "rolebindings.rbac.authorization.k8s.io": ("get", "create"),
    "statefulsets.apps": ("get", "create", "patch", "delete"),
    "networkpolicies.networking.k8s.io": ("get", "create", "patch", "delete"),
    "poddisruptionbudgets.policy": ("get", "patch", "delete"),
}


class Proof:
    """What is shown, in turn, on one control plane.

    Args:
        kubectl: an administrator's.
        admin: the same one's client.
        kubeconfig: the same one's file.
        nodes: on which pods are placed.
    """

    def __init__(
        self, kubectl: Kubectl, admin: Api, kubeconfig: Path, nodes: list[PretendingNode]
    ) -> None:
        self.kubectl, self.admin, self.kubeconfig, self.nodes = kubectl, admin, kubeconfig, nodes

    def namespace(self, name: str) -> Kubectl:
        """Make a namespace that enforces `restricted`, and return kubectl in it."""
        self.kubectl("create", "namespace", name)
        for mode in ("enforce", "warn"):
            label = f"pod-security.kubernetes.io/{mode}=restricted"
            self.kubectl("label", "namespace", name, label)
        # Without it no pod is admitted.
        kubectl = self.kubectl.within(name)
        kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
        return kubectl

    def define(self, module: Module) -> None:
        """Give the API server an operator's kinds."""
        for file in module.definitions():
            # Without --server-side they would be too large for an annotation.
            self.kubectl("apply", "--server-side", "-f", str(file))
            name = yaml.safe_load(file.read_text())["metadata"]["name"]
            self.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")

    def manifests(self, shape: str, case: str, more: dict[str, Any]) -> None:
        """Show that every manifest and every pod of a shape is accepted as it is."""
        namespace = f"{shape}-{case}"
        kubectl = self.namespace(namespace)
        documents = render(example(shape, **more), release=RELEASE, namespace=namespace)
        tried = pod_bodies(documents)
        documents = without_tests(documents)
        text = yaml.safe_dump_all(documents)
        kubectl("apply", "--server-side", "-f", "-", stdin=text)
        live = kubectl.json("get", "-f", "-", stdin=text)["items"]
        for document, accepted in zip(documents, live, strict=True):
            require_within(document, accepted, document["kind"])
        again = kubectl("apply", "--server-side", "-f", "-", stdin=text)
        assert again.count("serverside-applied") == len(documents), again
        after = kubectl.json("get", "-f", "-", stdin=text)["items"]
        for first, second in zip(live, after, strict=True):
            same = [each["metadata"].get("generation") for each in (first, second)]
            assert same[0] == same[1], f"applied again, {first['kind']} changes"
        for pod in tried:
            self._require_restricted(kubectl, pod)
        kinds = sorted({document["kind"] for document in documents})
        shown(f"{shape}, {case}: accepted by server-side apply: {', '.join(kinds)}")
        self.admin.delete(f"/api/v1/namespaces/{namespace}")

    def _require_restricted(self, kubectl: Kubectl, pod: Object) -> None:
        """Assert that a pod is admitted, and as root is not."""
        kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        as_root = {**pod, "spec": {**pod["spec"], "securityContext": {"runAsUser": 0}}}
        with pytest.raises(KubectlError, match='violates PodSecurity "restricted'):
            kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(as_root))

    def warnings(self) -> None:
        """Show that the API server warned of nothing, and that it would have."""
        assert not self.kubectl.warnings, self.kubectl.warnings
        documents = render(example("one-pod"), release=RELEASE, namespace="cdc")
        [drivers] = of_kind(documents, "StatefulSet")
        del drivers["spec"]["template"]["spec"]["securityContext"]
        kubectl = Kubectl(self.kubeconfig, "cdc")
        kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=json.dumps(drivers))
        [warning] = kubectl.warnings
        assert 'would violate PodSecurity "restricted' in warning, warning
        shown("the API server warned of nothing")

    def rights(self, shape: str) -> None:
        """Show what a driver may do, and that an executor may do nothing."""
        namespace = f"{shape}-rights"
        # can-i warns of kinds that are in no namespace: a list of warnings of its own.
        kubectl = Kubectl(self.kubeconfig, namespace)
        self.namespace(namespace)
        documents = without_tests(render(example(shape), release=RELEASE, namespace=namespace))
        kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))
        if shape != "one-pod":
            for resource, verbs in MAY.items():
                for verb in verbs:
                    assert can(kubectl, NAME, verb, resource), f"{verb} {resource}"
                    assert not can(kubectl.within("default"), NAME, verb, resource, of=namespace)
            for resource, verbs in MAY_NOT.items():
                for verb in verbs:
                    assert not can(kubectl, NAME, verb, resource), f"{verb} {resource}"
        nobody = rights_of(kubectl, namespace, "nobody")
        without = f"{NAME}-executor" if shape != "one-pod" else NAME
        assert rights_of(kubectl, namespace, without) == nobody
        shown(f"{shape}: rights as meant; {without} has none")
        self.admin.delete(f"/api/v1/namespaces/{namespace}")

    def release(self, namespace: str) -> Release:
        """Return a release that is not installed yet, in a namespace of its own."""
        return Release(self.namespace(namespace), self.admin, self.kubeconfig, self.nodes)

    def executors(self) -> None:
        """Show what becomes of the pods of the shape `executors`."""
        release = self.release("cdc")
        secret = ["secret", "generic", "slackwater-state"]
        release.kubectl("create", *secret, "--from-literal", "url=postgresql+psycopg://host/db")
        values = example("executors")
        release.install(values)
        show_eviction(release)
        show_update(release, values)
        show_deletion(release)
        release.uninstall()
        until(lambda: not release.pods(""), "the end of all pods, the executors among them")
        assert [each["metadata"]["name"] for each in self._made_in("cdc")] == ["slackwater-state"]
        shown("helm uninstall leaves nothing but the Secret")

    def one_pod(self) -> None:
        """Show what becomes of the pod and the volume of the shape `one-pod`."""
        release = self.release("cdc-one-pod")
        source = {"hostPath": {"path": "/nowhere"}, "accessModes": ["ReadWriteOnce"]}
        spec = {**source, "capacity": {"storage": "20Gi"}}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}}
        self.kubectl("create", "-f", "-", stdin=json.dumps({**volume, "spec": spec}))
        values = example("one-pod")
        release.install(values)
        claim = release.kubectl.json("get", "pvc", f"{NAME}-data")
        assert claim["status"]["phase"] == "Bound", claim
        assert not release.evict(f"{NAME}-0")
        release.wait_for_drivers()
        shown("one-pod: its claim is bound, and its pod is evicted at once and comes again")
        release.upgrade(example("executors"))
        release.wait_for_drivers()
        release.upgrade(values)
        release.wait_for_drivers()
        release.uninstall()
        until(lambda: not release.pods(""), "the end of all pods")
        assert [each["kind"] for each in self._made_in("cdc-one-pod")] == ["PersistentVolumeClaim"]
        shown("helm upgrade to executors and back; helm uninstall leaves nothing but the claim")

    def _made_in(self, namespace: str) -> list[Object]:
        """Return what is in a namespace, but for what is in each."""
        kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,pvc,pdb"
        items = self.kubectl.within(namespace).json("get", kinds)["items"]
        own = ("default", "kube-root-ca.crt")
        return [each for each in items if each["metadata"]["name"] not in own]


def require_within(rendered: Any, accepted: Any, where: str) -> None:
    """Assert that the API server has everything that was rendered, as it was rendered."""
    if isinstance(rendered, dict):
        for key, value in rendered.items():
            # The server does not write down what is empty.
            assert key in accepted or value == {}, f"{where}.{key} was dropped"
            require_within(value, accepted.get(key, {}), f"{where}.{key}")
    elif isinstance(rendered, list):
        assert len(rendered) == len(accepted), where
        for number, (one, other) in enumerate(zip(rendered, accepted, strict=True)):
            require_within(one, other, f"{where}[{number}]")
    else:
        assert rendered == accepted, f"{where}: {rendered!r} became {accepted!r}"


def pod_bodies(documents: list[Document]) -> list[Object]:
    """Return the pods of a chart, those too that only Spark or the operator makes."""
    bodies = []
    for pod in pods(documents):
        spec = {**pod.spec, "containers": [{"image": "slackwater", **pod.container}]}
        metadata = {"name": f"tried-{pod.role}", "labels": pod.labels}
        bodies.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return bodies


def can(kubectl: Kubectl, account: str, verb: str, resource: str, of: str = "") -> bool:
    """Return whether a service account may do something in kubectl's namespace."""
    user = f"system:serviceaccount:{of or kubectl.namespace}:{account}"
    resource, _, part = resource.partition("/")
    options = [f"--subresource={part}"] if part else []
    try:
        answer = kubectl("auth", "can-i", verb, resource, "--as", user, *options)
    except KubectlError as error:
        # A "no" is a failure of the command.
        answer = str(error)
    assert answer.split()[0] in ("yes", "no"), answer
    return answer.split()[0] == "yes"


def rights_of(kubectl: Kubectl, namespace: str, account: str) -> list[str]:
    """Return the rights of a service account."""
    user = f"system:serviceaccount:{namespace}:{account}"
    return sorted(kubectl("auth", "can-i", "--list", "--as", user).splitlines())


def prove() -> None:
    """Run the proof.

    Raises:
        AssertionError: something is not as it is meant.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="control-plane-")))
        plane = stack.enter_context(control_plane(folder))
        shown(f"Kubernetes {VERSION} is ready")
        nodes = [stack.enter_context(pretending_node(plane, name)) for name in ("node-1", "node-2")]
        kubeconfig = plane.kubeconfig_of_admin()
        kubectl = Kubectl(kubeconfig, "default")
        proof = Proof(kubectl, plane.admin(), kubeconfig, nodes)
        kubectl("create", "priorityclass", "high", "--value=1000")
        proof.define(PROMETHEUS_OPERATOR)
        for operator in SPARK_OPERATORS:
            proof.define(operator)
            for case, more in CASES.items():
                version = operator.name.partition("@v")[2].replace(".", "-")
                proof.manifests("spark-application", f"{case}-{version}", more)
        for shape in SHAPES:
            if shape != "spark-application":
                for case, more in CASES.items():
                    proof.manifests(shape, case, more)
            proof.rights(shape)
        proof.executors()
        proof.one_pod()
        proof.warnings()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    # So that no server is left when this process is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    prove()
