"""A stand-in for a kubelet: runs the pods of a cluster as processes of this machine.

Each pod has an address of its own, 127.A.B.N; the network is the machine's. A container sees a
read-only root and the pod's volumes, and runs as the user of the image, within the pod's limit of
memory. Cores are not limited.
"""

import base64
import http.client
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import psutil

from tests.pods.api_server import ADDRESS, NAMES
from tests.pods.cluster import AnyCluster, MissingObjectError
from tests.pods.image import USER, Container, Mount, environment, start
from tests.pods.memory_cgroup import cgroups_of_this_machine
from tests.pods.objects import Object

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
_LOOK_S = 0.2
_BACK_OFF_S = 1.0
_KILLED = 137


class Kubelet:
    """Runs pods.

    Args:
        cluster: whose pods.
        folder: for roots, volumes and logs.
        jars: the image's.
        authority: the certificate of the API server's authority.

    Raises:
        NoCgroupError: pods can't have limits of memory here.
    """

    def __init__(self, cluster: AnyCluster, folder: Path, jars: Path, authority: Path) -> None:
        self.cluster, self.folder, self.jars, self.authority = cluster, folder, jars, authority
        self.pods: dict[str, RunningPod] = {}
        # Another proof may run beside this one.
        own = os.getpid()
        self._addresses = f"127.{own // 250 % 250 + 1}.{own % 250}"
        self._numbers = itertools.count(11)
        self.cgroups = cgroups_of_this_machine()
        self._stopped = threading.Event()

    def next_address(self) -> str:
        """Return an address for a pod."""
        return f"{self._addresses}.{next(self._numbers)}"

    def start(self) -> None:
        """Start running pods, each on a thread of its own."""
        threading.Thread(target=self._run, name="kubelet", daemon=True).start()

    def stop(self) -> None:
        """Kill all pods."""
        self._stopped.set()
        for pod in list(self.pods.values()):
            pod.kill()
        self.cgroups.remove()

    def _run(self) -> None:
        for event in self.cluster.objects.watch(0):
            if self._stopped.is_set():
                return
            if event is None or event[2] != "pods":
                continue
            change, body = event[1], event[3]
            uid = body["metadata"]["uid"]
            if change == "ADDED":
                self.pods[uid] = RunningPod(self, body)
            elif uid in self.pods and "deletionTimestamp" in body["metadata"]:
                self.pods[uid].delete(body["metadata"]["deletionGracePeriodSeconds"])
            elif change == "DELETED" and uid in self.pods:
                self.pods[uid].kill()


class RunningPod:
    """A pod with one container, which runs until the pod is deleted.

    Attributes:
        memory: its cgroup, which is there until the kubelet stops.
        restarts: how many times its container ended and is to be started again.
        oom_kills: how many times the kernel killed a process for the pod's memory.
    """

    def __init__(self, kubelet: Kubelet, body: Object) -> None:
        self.body = body
        self.name: str = body["metadata"]["name"]
        self.address = kubelet.next_address()
        self.folder = kubelet.folder / f"{self.name}-{body['metadata']['uid'][:8]}"
        self.folder.mkdir()
        self._hosts = self.folder / "hosts"
        self._hosts.write_text(
            f"127.0.0.1 localhost\n{ADDRESS} {' '.join(NAMES)}\n{self.address} {self.name}\n"
        )
        self.log = self.folder / "log"
        self.restarts = 0
        self.oom_kills = 0
        self._kubelet = kubelet
        self._process: Popen[bytes] | None = None
        self._last_state: dict[str, Any] = {}
        self._deleted = threading.Event()
        # Held while the container starts, so that no container starts in a pod that is deleted.
        self._starting = threading.Lock()
        self._container = body["spec"]["containers"][0]
        limits = self._container.get("resources", {}).get("limits", {})
        self.memory = kubelet.cgroups.make(self.folder.name, limits.get("memory"))
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def kill(self) -> None:
        """Kill the container, and do not start it again."""
        with self._starting:
            self._deleted.set()
        self.memory.kill()

    def crash(self) -> None:
        """Kill the container; a pod of a StatefulSet starts it again."""
        # The first of its processes: with it the kernel kills all that share its process ids.
        self._signal(signal.SIGKILL)

    def memory_used(self) -> str:
        """Return what its processes held at most, its limit, and what the kernel killed."""
        memory, mib = self.memory, 1 << 20
        return (
            f"{self.name}: limit {(memory.limit_bytes or 0) // mib} MiB, held by processes"
            f" {memory.processes_bytes_max // mib}, with page cache {memory.peak_bytes() // mib};"
            f" killed for memory {self.oom_kills}, restarts {self.restarts}"
        )

    def delete(self, grace_s: int) -> None:
        """Ask the container to end, kill it after the grace, and remove the pod."""
        with self._starting:
            if self._deleted.is_set():
                return
            self._deleted.set()
        threading.Thread(target=self._end, args=(grace_s,), daemon=True).start()

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page of the pod's."""
        ports = {port["name"]: port["containerPort"] for port in self._container.get("ports", [])}
        try:
            connection = http.client.HTTPConnection(self.address, ports["http"], timeout=5)
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError as error:
            return 0, str(error)

    def is_running(self) -> bool:
        """Return whether its container runs."""
        return self._process is not None and self._process.poll() is None

    def listens_on(self) -> set[int]:
        """Return the ports of the pod's address at which a process listens."""
        listening = [
            (connection.laddr, connection.pid)
            for connection in psutil.net_connections("tcp4")
            if connection.status == psutil.CONN_LISTEN
        ]
        return {
            address.port
            for address, pid in listening
            if address and address.ip in (self.address, "0.0.0.0") and self._has(pid)
        }

    def _has(self, pid: int | None) -> bool:
        if pid is None or self._process is None:
            return False
        try:
            parents = {process.pid for process in psutil.Process(pid).parents()}
        except psutil.NoSuchProcess:
            return False
        return self._process.pid in parents

    def _run(self) -> None:
        waits_for = ""
        while not self._deleted.is_set():
            try:
                self._start()
            except MissingObjectError as error:
                if str(error) != waits_for:
                    waits_for = str(error)
                    waiting = {"reason": "ContainerCreating", "message": waits_for}
                    self._status("Pending", {"waiting": waiting}, ready=False)
                self._deleted.wait(_LOOK_S)
                continue
            if self._process is None:
                return
            kills = self.oom_kills
            self._while_running(self._process)
            code = self._process.wait()
            terminated: dict[str, Any] = {"exitCode": code if code >= 0 else 128 - code}
            if self.oom_kills > kills:
                terminated = {"exitCode": _KILLED, "reason": "OOMKilled"}
            if self.body["spec"].get("restartPolicy", "Always") != "Always":
                phase = "Failed" if terminated["exitCode"] else "Succeeded"
                self._status(phase, {"terminated": terminated}, ready=False)
                return
            self._last_state = {"terminated": terminated}
            if not self._deleted.is_set():
                self.restarts += 1
            # As a kubelet, but for a shorter time.
            self._deleted.wait(_BACK_OFF_S)

    def _start(self) -> None:
        """Start the container, unless the pod is deleted.

        Raises:
            MissingObjectError: what the pod names does not exist yet.
        """
        container = Container(
            self.folder,
            self._kubelet.jars,
            self._mounts(),
            self._hosts,
            self._container.get("command", []),
            self._container.get("args", []),
            self.memory.entrance,
        )
        environ = self._environment()
        with self._starting:
            if not self._deleted.is_set():
                self._process = start(container, environ, self.log)

    def _while_running(self, process: Popen[bytes]) -> None:
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        probe = self._container.get("readinessProbe", {}).get("httpGet")
        ready: bool | None = None
        while process.poll() is None:
            self._look_at_memory()
            now_ready = probe is None or self.get(probe["path"])[0] == 200
            if now_ready != ready and not self._deleted.is_set():
                ready = now_ready
                self._status("Running", {"running": {"startedAt": began}}, ready=ready)
            time.sleep(_LOOK_S)
        self._look_at_memory()

    def _look_at_memory(self) -> None:
        """Kill the whole container if the kernel has killed a part, as version 2 of cgroups can."""
        try:
            self.memory.look()
            kills = self.memory.kills()
        except OSError:
            # The kubelet has removed it.
            return
        if kills > self.oom_kills:
            self.oom_kills = kills
            self.memory.kill()

    def _status(self, phase: str, state: dict[str, Any], *, ready: bool) -> None:
        status = {
            "phase": phase,
            "podIP": self.address,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": self._container["name"],
                    "ready": ready,
                    "restartCount": self.restarts,
                    "state": state,
                    "lastState": self._last_state,
                }
            ],
        }
        metadata = self.body["metadata"]
        place = ("pods", metadata["namespace"], self.name)
        self._kubelet.cluster.objects.merge(*place, {"status": status})

    def _end(self, grace_s: int) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutExpired):
                process.wait(grace_s)
        self.memory.kill()
        metadata = self.body["metadata"]
        self._kubelet.cluster.objects.delete("pods", metadata["namespace"], self.name, 0)

    def _signal(self, number: int) -> None:
        """Send a signal to the container's first process, the only child of unshare."""
        if self._process is None:
            return
        try:
            for child in psutil.Process(self._process.pid).children():
                os.kill(child.pid, number)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return

    def _mounts(self) -> list[Mount]:
        volumes = {
            volume["name"]: self._volume(volume) for volume in self.body["spec"].get("volumes", [])
        }
        mounts = [
            Mount(volumes[mount["name"]], mount["mountPath"], bool(mount.get("readOnly")))
            for mount in self._container.get("volumeMounts", [])
        ]
        if self.body["spec"].get("automountServiceAccountToken", True):
            token = self._folder("token")
            (token / "token").write_text(self._kubelet.cluster.token(self.body))
            (token / "ca.crt").write_bytes(self._kubelet.authority.read_bytes())
            (token / "namespace").write_text(self.body["metadata"]["namespace"])
            mounts.append(Mount(token, _TOKEN, read_only=True))
        return mounts

    def _volume(self, volume: dict[str, Any]) -> Path:
        match volume:
            case {"configMap": {"name": name}}:
                folder = self._folder(volume["name"])
                for file, text in self._object("configmaps", name)["data"].items():
                    # The pod has an address of its own in the place of a network of its own.
                    (folder / file).write_text(text.replace("0.0.0.0", self.address))
            case {"secret": {"secretName": name, "items": items}}:
                folder = self._folder(volume["name"])
                for item in items:
                    file = folder / item["path"]
                    file.write_bytes(
                        base64.b64decode(self._object("secrets", name)["data"][item["key"]])
                    )
                    os.chown(file, 0, USER)
                    file.chmod(volume["secret"]["defaultMode"])
            case {"persistentVolumeClaim": {"claimName": name}}:
                folder = self._kubelet.folder / f"claim-{name}"
                folder.mkdir(exist_ok=True)
                _give(folder)
            case {"emptyDir": _}:
                folder = self._folder(volume["name"])
                _give(folder)
            case _:
                raise ValueError(f"a kind of volume that this kubelet does not have: {volume}")
        return folder

    def _folder(self, name: str) -> Path:
        folder = self.folder / f"volume-{re.sub(r'[^a-z0-9-]', '-', name)}"
        folder.mkdir(exist_ok=True)
        return folder

    def _object(self, resource: str, name: str) -> Object:
        body = self._kubelet.cluster.objects.get(resource, self.body["metadata"]["namespace"], name)
        if body is None:
            raise MissingObjectError(f"{self.name} names {resource} {name}, which does not exist")
        return body

    def _environment(self) -> dict[str, str]:
        fields = {"metadata.name": self.name, "status.podIP": self.address}
        environ = environment() | {
            "HOSTNAME": self.name,
            "KUBERNETES_SERVICE_HOST": NAMES[0],
            "KUBERNETES_SERVICE_PORT": "443",
        }
        for entry in self._container.get("env", []):
            match entry:
                case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                    environ[entry["name"]] = fields[path]
                case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
                    secret = self._object("secrets", name)["data"][key]
                    environ[entry["name"]] = base64.b64decode(secret).decode()
                case _:
                    environ[entry["name"]] = entry.get("value", "")
        return environ


def _give(folder: Path) -> None:
    """Let the image's group write to a volume, as fsGroup does."""
    os.chown(folder, 0, USER)
    folder.chmod(0o2775)


def wait_until(holds: Callable[[], bool], what: str, seconds_max: float) -> float:
    """Return after how many seconds something holds.

    Raises:
        TimeoutError: it does not within the limit.
    """
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds_max:
            raise TimeoutError(f"{what}: not within {seconds_max:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began
