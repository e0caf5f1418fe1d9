"""What a kubelet and the proofs need of a cluster, stand-in or Kubernetes' control plane."""

from collections.abc import Callable, Iterator
from typing import Protocol

from tests.pods.objects import Object


class MissingObjectError(Exception):
    """A pod names an object that does not exist yet. A kubelet tries again, as long as it takes."""


class ClusterObjects(Protocol):
    """Objects by resource, namespace and name."""

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None if there is none."""

    def select(self, resource: str, namespace: str, labels: str) -> list[Object]:
        """Return the objects of a namespace that a label selector selects."""

    def merge(self, resource: str, namespace: str, name: str, patch: Object) -> Object | None:
        """Change an object; return None if it is gone."""

    def delete(self, resource: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object; a pod first gets a time of deletion, unless the grace is 0 s."""

    def watch(self, after: int) -> Iterator[tuple[int, str, str, Object] | None]:
        """Yield each change: a number, ADDED or the like, the resource and the object.

        It yields None at times when nothing changes.
        """


class AnyCluster(Protocol):
    """A cluster."""

    @property
    def objects(self) -> ClusterObjects:
        """Its objects; those of the chart are among them."""

    @property
    def asked(self) -> set[tuple[str, str, str]]:
        """What service accounts asked for: account, verb and resource."""

    @property
    def refused(self) -> list[str]:
        """What service accounts were refused."""

    def token(self, pod: Object) -> str:
        """Return the token of a pod's service account.

        Raises:
            MissingObjectError: it can't be had yet.
        """


class Drivers(Protocol):
    """What keeps the chart's drivers."""

    def start(self) -> None:
        """Make the pods, and make those again that are gone."""

    def stop(self) -> None:
        """Delete the pods."""

    def roll(
        self, annotations: dict[str, str], is_ready: Callable[[str], bool], seconds_max: float
    ) -> None:
        """Replace each pod, the last one first, when the one before is ready.

        Raises:
            TimeoutError: one does not become ready.
        """
