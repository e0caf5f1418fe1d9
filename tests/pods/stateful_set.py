"""Keeps the pods of a StatefulSet, and replaces them one after the other."""

import threading
from collections.abc import Callable
from copy import deepcopy

from tests.pods.api_server import Cluster
from tests.pods.objects import Object

_LOOK_S = 0.2


class StatefulSet:
    """The controller of one StatefulSet.

    Args:
        cluster: where its pods are.
        document: the StatefulSet.
        namespace: of its pods.
    """

    def __init__(self, cluster: Cluster, document: Object, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._spec = deepcopy(document["spec"])
        self._name: str = document["metadata"]["name"]
        self._stopped = threading.Event()

    def start(self) -> None:
        """Make the pods, and make those again that are gone."""
        threading.Thread(target=self._run, name="stateful-set", daemon=True).start()

    def stop(self) -> None:
        """Delete the pods."""
        self._stopped.set()
        for name in self._names():
            self._cluster.objects.delete("pods", self._namespace, name)

    def roll(
        self, annotations: dict[str, str], is_ready: Callable[[str], bool], seconds_max: float
    ) -> None:
        """Replace each pod, the last one first, when the one before is ready.

        Raises:
            TimeoutError: one does not become ready.
        """
        self._spec["template"]["metadata"]["annotations"] |= annotations
        for name in reversed(self._names()):
            self._cluster.objects.delete("pods", self._namespace, name)
            for _ in range(round(seconds_max / _LOOK_S)):
                pod = self._cluster.objects.get("pods", self._namespace, name)
                if pod is not None and self._is_new(pod, annotations) and is_ready(name):
                    break
                self._stopped.wait(_LOOK_S)
            else:
                raise TimeoutError(f"{name} is not ready within {seconds_max} s")

    def _is_new(self, pod: Object, annotations: dict[str, str]) -> bool:
        own: dict[str, str] = pod["metadata"]["annotations"]
        return annotations.items() <= own.items()

    def _names(self) -> list[str]:
        return [f"{self._name}-{number}" for number in range(self._spec["replicas"])]

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name in self._names():
                if self._cluster.objects.get("pods", self._namespace, name) is None:
                    pod = deepcopy(self._spec["template"])
                    pod["metadata"]["name"] = name
                    self._cluster.objects.create("pods", self._namespace, pod)
            self._stopped.wait(_LOOK_S)
