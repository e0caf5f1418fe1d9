"""The objects of a cluster, with their history, as Kubernetes' API has them."""

import re
import threading
import time
import uuid
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]


class ConflictError(Exception):
    """There is an object of this name already."""


@dataclass
class Objects:
    """Objects by resource, namespace and name, with what happened to each in turn."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    events: list[tuple[int, str, str, Object]] = field(default_factory=list)
    _objects: dict[Key, Object] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return len(self.events)

    def create(self, resource: str, namespace: str, body: Object) -> Object:
        """Add an object; a pod is Pending until a kubelet has it.

        Raises:
            ConflictError: the name is taken.
        """
        body = deepcopy(body)
        metadata = body.setdefault("metadata", {})
        metadata |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if resource == "pods":
            body["status"] = {"phase": "Pending"}
        with self.changed:
            key = (resource, namespace, metadata["name"])
            if key in self._objects:
                raise ConflictError(metadata["name"])
            self._objects[key] = body
            return self._note("ADDED", resource, body)

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        with self.changed:
            return deepcopy(self._objects.get((resource, namespace, name)))

    def select(
        self, resource: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[Object]:
        with self.changed:
            return [
                deepcopy(body)
                for (kind, of, _), body in self._objects.items()
                if kind == resource
                and namespace in (None, of)
                and is_selected(body, labels, fields)
            ]

    def merge(
        self, resource: str, namespace: str, name: str, patch: Object | list[Object]
    ) -> Object | None:
        """Apply a patch as RFC 7386 or RFC 6902 has it; return None if the object is gone."""
        with self.changed:
            body = self._objects.get((resource, namespace, name))
            if body is None:
                return None
            if isinstance(patch, list):
                for step in patch:
                    _step(body, step)
            else:
                _merge(body, patch)
            return self._note("MODIFIED", resource, body)

    def delete(self, resource: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object; a pod first gets a time of deletion, unless the grace is 0 s."""
        with self.changed:
            body = self._objects.get((resource, namespace, name))
            if body is None:
                return
            if resource == "pods" and grace_s != 0:
                if "deletionTimestamp" not in body["metadata"]:
                    own = body["spec"].get("terminationGracePeriodSeconds", 30)
                    body["metadata"] |= {
                        "deletionTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                        "deletionGracePeriodSeconds": own if grace_s is None else grace_s,
                    }
                    self._note("MODIFIED", resource, body)
                return
            del self._objects[resource, namespace, name]
            self._note("DELETED", resource, body)
        if resource == "pods":
            self._collect(body["metadata"]["uid"], namespace)

    def _collect(self, uid: str, namespace: str) -> None:
        """Delete what belonged to an object, as Kubernetes' garbage collector does."""
        for resource in ("pods", "configmaps"):
            for body in self.select(resource, namespace):
                owners = body["metadata"].get("ownerReferences") or []
                if uid in [owner["uid"] for owner in owners]:
                    self.delete(resource, namespace, body["metadata"]["name"])

    def watch(self, after: int) -> Iterator[tuple[int, str, str, Object] | None]:
        """Yield what happens from now on; None at times when nothing does."""
        while True:
            with self.changed:
                if after >= self.version:
                    self.changed.wait(2)
                events = self.events[after:]
            after += len(events)
            yield from events
            if not events:
                yield None

    def _note(self, change: str, resource: str, body: Object) -> Object:
        body["metadata"]["resourceVersion"] = str(self.version + 1)
        copied = deepcopy(body)
        self.events.append((self.version + 1, change, resource, copied))
        self.changed.notify_all()
        return copied


def is_selected(body: Object, labels: str, fields: str = "") -> bool:
    """Return whether an object fits a label selector and a field selector."""
    own = body["metadata"].get("labels") or {}
    if fields and fields != f"metadata.name={body['metadata']['name']}":
        return False
    return all(_fits(own, term.strip()) for term in re.split(r",(?![^(]*\))", labels) if term)


def _fits(labels: dict[str, str], term: str) -> bool:
    if (match := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term)) is not None:
        name, operator, values = match.groups()
        listed = [value.strip() for value in values.split(",")]
        return (labels.get(name) in listed) == (operator == "in")
    if "!=" in term:
        name, _, value = term.partition("!=")
        return labels.get(name) != value
    if "=" in term:
        name, _, value = term.replace("==", "=").partition("=")
        return labels.get(name) == value
    return term[1:] not in labels if term.startswith("!") else term in labels


def _merge(body: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict) and isinstance(body.get(key), dict):
            _merge(body[key], value)
        else:
            body[key] = deepcopy(value)


def _step(body: Object, step: Object) -> None:
    """Do a step of RFC 6902 that adds, replaces or removes a member of an object."""
    *folders, last = [
        part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
    ]
    for folder in folders:
        body = body[int(folder)] if isinstance(body, list) else body.setdefault(folder, {})
    if step["op"] == "remove":
        body.pop(last, None)
    else:
        body[last] = deepcopy(step["value"])
