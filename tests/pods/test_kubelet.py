"""The stand-in for a kubelet: it limits memory, and waits for what a pod names."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pods.api_server import Cluster
from tests.pods.kubelet import Kubelet, wait_until
from tests.pods.memory_cgroup import bytes_of
from tests.pods.objects import Objects

# Root has to run them, where cgroups can be made.
pytestmark = pytest.mark.long
_S_MAX = 120
_EATS = "held = []\nwhile True: held.append(b'x' * 2**20)"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Have the umask of a kubelet: the image's user reads root and volumes."""
    own = os.umask(0o022)
    yield
    os.umask(own)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """Run a kubelet of a cluster without pods."""
    folder = tmp_path / "pods"
    (folder / "jars").mkdir(parents=True)
    (folder / "ca.crt").touch()
    kubelet = Kubelet(Cluster(), folder, folder / "jars", folder / "ca.crt")
    kubelet.start()
    yield kubelet
    kubelet.stop()


def pod(name: str, command: list[str], **more: Any) -> dict[str, Any]:
    limits = {"memory": "64Mi"}
    container: dict[str, Any] = {
        "name": "only",
        "command": command,
        "resources": {"limits": limits},
    }
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, **more}
    if "volumes" in more:
        mounts = [{"name": volume["name"], "mountPath": "/mnt"} for volume in more["volumes"]]
        container["volumeMounts"] = mounts
    return {"metadata": {"name": name}, "spec": {**spec, "containers": [container]}}


def objects_of(kubelet: Kubelet) -> Objects:
    objects = kubelet.cluster.objects
    assert isinstance(objects, Objects)
    return objects


def status_of(kubelet: Kubelet, name: str) -> dict[str, Any]:
    body = kubelet.cluster.objects.get("pods", "cdc", name)
    assert body is not None
    return dict(body["status"])


def ended(kubelet: Kubelet, name: str) -> dict[str, Any]:
    """Return how a pod's container ended."""
    wait_until(
        lambda: status_of(kubelet, name)["phase"] in ("Failed", "Succeeded"),
        f"{name}'s end",
        _S_MAX,
    )
    [container] = status_of(kubelet, name)["containerStatuses"]
    return dict(container["state"]["terminated"])


def test_a_container_beyond_its_limit_is_killed_and_the_pod_says_so(kubelet: Kubelet) -> None:
    objects_of(kubelet).create("pods", "cdc", pod("eats", ["python3", "-c", _EATS]))
    assert ended(kubelet, "eats") == {"exitCode": 137, "reason": "OOMKilled"}
    [running] = kubelet.pods.values()
    assert running.oom_kills == 1
    assert running.memory.peak_bytes() == bytes_of("64Mi")
    assert not running.memory.processes()


def test_a_container_below_its_limit_is_left_alone_and_its_peak_is_known(kubelet: Kubelet) -> None:
    eats = "import time\nheld = b'x' * 2**25\ntime.sleep(2)"
    objects_of(kubelet).create("pods", "cdc", pod("fits", ["python3", "-c", eats]))
    assert ended(kubelet, "fits") == {"exitCode": 0}
    [running] = kubelet.pods.values()
    assert running.oom_kills == 0
    assert 2**25 < running.memory.processes_bytes_max <= running.memory.peak_bytes() <= 2**26


def test_a_pod_waits_until_the_config_map_that_it_names_is_there(kubelet: Kubelet) -> None:
    volumes = [{"name": "conf", "configMap": {"name": "late"}}]
    objects = objects_of(kubelet)
    for name in ("reads", "deleted"):
        objects.create("pods", "cdc", pod(name, ["cat", "/mnt/file"], volumes=volumes))

    def waits(name: str) -> bool:
        [container] = status_of(kubelet, name).get("containerStatuses", [{}])
        waiting = container.get("state", {}).get("waiting", {})
        return waiting.get("reason") == "ContainerCreating" and "late" in waiting["message"]

    wait_until(lambda: waits("reads") and waits("deleted"), "pods that wait", _S_MAX)
    objects.delete("pods", "cdc", "deleted")
    wait_until(lambda: objects.get("pods", "cdc", "deleted") is None, "its deletion", _S_MAX)
    objects.create("configmaps", "cdc", {"metadata": {"name": "late"}, "data": {"file": "text"}})
    assert ended(kubelet, "reads") == {"exitCode": 0}
    reads, deleted = kubelet.pods.values()
    assert reads.log.read_text() == "text"
    assert not deleted.log.exists()


def test_nothing_is_left_of_the_cgroups_when_the_kubelet_stops(tmp_path: Path) -> None:
    kubelet = Kubelet(Cluster(), tmp_path, tmp_path, tmp_path)
    kubelet.start()
    objects_of(kubelet).create("pods", "cdc", pod("sleeps", ["sleep", "1000"]))
    wait_until(lambda: len(kubelet.pods) == 1, "the pod", _S_MAX)
    [running] = kubelet.pods.values()
    wait_until(lambda: len(running.memory.processes()) > 1, "its processes", _S_MAX)
    kubelet.stop()
    assert not running.is_running()
    assert not running.memory.folder.parent.exists()
