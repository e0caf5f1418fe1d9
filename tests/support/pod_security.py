"""The Pod Security Standard `restricted`, as far as pods of this project could break it."""

from typing import Any, Final

# https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
_VOLUMES: Final = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: dict[str, Any]) -> list[str]:
    """Return what the standard forbids in a pod."""
    of_pod = spec.get("securityContext", {})
    broken = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for volume in spec.get("volumes", []):
        broken += [f"volume {kind}" for kind in volume.keys() - {"name"} - _VOLUMES]
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container.get("securityContext", {})
        merged = {**of_pod, **own}
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"]
            and not own["capabilities"].get("add"),
            "runAsNonRoot": merged.get("runAsNonRoot") is True,
            "runAsUser": merged.get("runAsUser") != 0,
            "seccompProfile": merged.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "hostPort": not [port for port in container.get("ports", []) if port.get("hostPort")],
        }
        broken += [name for name, holds in checks.items() if not holds]
    return broken
