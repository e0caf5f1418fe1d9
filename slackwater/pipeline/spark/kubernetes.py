"""Settings for a driver in a Kubernetes pod whose executors are pods, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Kubernetes mounts it into each pod with a service account's token.
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Spark's scripts put it behind Spark's own jars, so an archive of their classes remains valid.
DRIVER_CLASS_PATH: Final = "SPARK_DIST_CLASSPATH"
_CORES: Final = "spark.executor.cores"
# Spark would query objects that it does not make here: a Service and claims of its driver's, and a
# ConfigMap of SPARK_CONF_DIR. The driver would need a right for each.
_PODS_ALONE: Final = {
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",
}
_EXECUTOR_CLASS_PATH: Final = "spark.executor.extraClassPath"


def on_kubernetes(master: str) -> bool:
    """Return True if the master's executors are pods."""
    return master.startswith("k8s://")


def own_namespace(file: Path = NAMESPACE_FILE) -> str | None:
    """Return the namespace of this process's pod; None outside a pod."""
    return file.read_text().strip() if file.is_file() else None


def pod_conf(environ: Mapping[str, str], namespace: str | None) -> dict[str, str]:
    """Return Spark's settings that name the driver's own pod, and keep it to pods.

    A replica of a StatefulSet can't have its name in a file, which is the same for all replicas.

    Args:
        environ: has the pod's POD_NAME and POD_IP, by Kubernetes' downward API.
        namespace: the pod's; executors are made in it. Without it Spark takes `default`.
    """
    named = {
        "spark.kubernetes.namespace": namespace,
        # Executors belong to this pod: Kubernetes deletes them when it is gone.
        "spark.kubernetes.driver.pod.name": environ.get("POD_NAME"),
        "spark.driver.host": environ.get("POD_IP"),
    }
    return _PODS_ALONE | {key: value for key, value in named.items() if value}


def parallelism(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that gives an epoch a task for each requested core.

    Spark's own value counts the executors that are there when the query starts. One that comes
    later would have no task until the next query.
    """
    if conf.get("spark.dynamicAllocation.enabled") == "true":
        return {}
    instances = int(conf.get("spark.executor.instances", "2"))
    return {"spark.default.parallelism": str(instances * int(conf.get(_CORES, "1")))}


def executor_class_path(folder: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with which executors find jars in a folder of their image.

    With spark.jars, each executor would copy them from the driver into its working directory.
    """
    own = conf.get(_EXECUTOR_CLASS_PATH)
    return {_EXECUTOR_CLASS_PATH: f"{folder}/*" if own is None else f"{own}:{folder}/*"}


def driver_class_path(folder: str, environ: Mapping[str, str]) -> str:
    """Return the class path of a JVM that is about to start, with the jars of a folder."""
    own, added = environ.get(DRIVER_CLASS_PATH), f"{folder}/*"
    if not own:
        return added
    return own if added in own.split(":") else f"{own}:{added}"
