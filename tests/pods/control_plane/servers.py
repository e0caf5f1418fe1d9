"""Starts the control plane, and ends it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slackwater.testing.emulator import free_port
from slackwater.testing.parent import DIE_WITH_PARENT
from tests.pods.control_plane.api import Api, Object, RefusedError
from tests.pods.control_plane.certificates import Authority, service_account_keys
from tests.pods.control_plane.programs import programs

NAMES: Final = ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost")
_STARTED_S_MAX: Final = 300
_ADMINS: Final = "system:masters"
# What service accounts ask for, but for the controllers' own.
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane.

    Attributes:
        url: of its API server.
        folder: of its certificates and logs.
        authority: signs the certificates of those who use it.
    """

    url: str
    folder: Path
    authority: Authority

    def client(self, user: str, group: str = "") -> Api:
        """Return a client with a certificate of its own."""
        certificate = self.authority.issue(user.replace(":", "-"), user, group)
        return Api(self.url, self.authority.certificate, certificate)

    def admin(self) -> Api:
        """Return a client that may do everything."""
        return self.client("admin", _ADMINS)

    def kubeconfig(self, user: str, group: str = "") -> Path:
        """Write a file with which Kubernetes' programs use the API server; return its path."""
        certificate, key = self.authority.issue(user.replace(":", "-"), user, group)
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        credentials = {"client-certificate": str(certificate), "client-key": str(key)}
        file = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        # YAML's parser reads JSON.
        file.write_text(json.dumps(content))
        return file

    def audit(self) -> list[Object]:
        """Return what service accounts asked for, as the API server's audit log has it."""
        log = self.folder / "audit.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def kubeconfig_of_admin(self) -> Path:
        """Write such a file for a user who may do everything; return its path."""
        return self.kubeconfig("admin", _ADMINS)


class _Servers:
    """The processes, each with a log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = programs()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, program: str, **options: object) -> None:
        command = [str(self._programs / program)]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with (self._folder / f"{program}.log").open("wb") as log:
            self._processes[program] = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=DIE_WITH_PARENT,
            )

    def ended(self) -> str:
        """Return what those wrote that have ended, or an empty text."""
        return "\n".join(
            f"{name} has ended:\n{(self._folder / f'{name}.log').read_text()[-2_000:]}"
            for name, process in self._processes.items()
            if process.poll() is not None
        )

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()


@contextmanager
def control_plane(
    folder: Path, address: str = "127.0.0.1", port: int = 0
) -> Iterator[ControlPlane]:
    """Run a control plane for the time of the context.

    Args:
        folder: for its data, certificates and logs.
        address: of the API server, on this machine.
        port: of the API server; a free one, if it is 0.

    Raises:
        RuntimeError: it does not start, or its programs can't be built.
    """
    servers = _Servers(folder)
    authority = Authority(folder)
    plane = ControlPlane(f"https://{address}:{port or free_port()}", folder, authority)
    try:
        _start(servers, plane)
        yield plane
    finally:
        if ended := servers.ended():
            print(ended, file=sys.stderr)
        servers.stop()


def _start(servers: _Servers, plane: ControlPlane) -> None:
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    servers.start(
        "etcd",
        data_dir=plane.folder / "etcd",
        listen_client_urls=clients,
        advertise_client_urls=clients,
        listen_peer_urls=peers,
        initial_advertise_peer_urls=peers,
        initial_cluster=f"default={peers}",
        # The data is thrown away.
        unsafe_no_fsync="true",
        log_level="warn",
    )
    address, port = plane.url.removeprefix("https://").split(":")
    certificate, key = plane.authority.issue("server", "kube-apiserver", hosts=(*NAMES, address))
    signing, public = service_account_keys(plane.folder)
    policy = plane.folder / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT))
    servers.start(
        "kube-apiserver",
        etcd_servers=clients,
        bind_address=address,
        # Otherwise it needs a network with a default route.
        advertise_address=address,
        secure_port=port,
        tls_cert_file=certificate,
        tls_private_key_file=key,
        client_ca_file=plane.authority.certificate,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=public,
        service_account_signing_key_file=signing,
        service_cluster_ip_range="10.0.0.0/24",
        # An address of this machine only can't be an endpoint.
        endpoint_reconciler_type="none",
        audit_policy_file=policy,
        audit_log_path=plane.folder / "audit.log",
    )
    _wait_until_ready(servers, plane.admin())
    servers.start(
        "kube-controller-manager",
        kubeconfig=plane.kubeconfig("system:kube-controller-manager"),
        service_account_private_key_file=signing,
        root_ca_file=plane.authority.certificate,
        use_service_account_credentials="true",
        leader_elect="false",
        secure_port=0,
    )
    servers.start(
        "kube-scheduler",
        kubeconfig=plane.kubeconfig("system:kube-scheduler"),
        leader_elect="false",
        secure_port=0,
    )


def _wait_until_ready(servers: _Servers, api: Api) -> None:
    until = time.monotonic() + _STARTED_S_MAX
    while True:
        try:
            api.text("/readyz")
        except (RefusedError, OSError) as error:
            if servers.ended() or time.monotonic() > until:
                raise RuntimeError(f"the API server does not start: {error}") from error
            time.sleep(0.2)
        else:
            return
