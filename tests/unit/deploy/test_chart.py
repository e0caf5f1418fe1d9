"""The Helm chart renders to valid manifests, and names only what the program has."""

import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from slackwater.config.load import load_pipelines, load_settings
from slackwater.config.settings import Settings
from slackwater.monitoring.http_access import is_own, own_names
from slackwater.pipeline.spark.kubernetes import on_kubernetes
from slackwater.scheduler.source_settings import ReadingSettings
from tests.support.charts import (
    CHART,
    EVERYTHING,
    EXAMPLES,
    example,
    of_kind,
    pods,
    render,
    settings_of,
)
from tests.support.repository import DOCS, ROOT

SHAPES = [path.stem for path in EXAMPLES]
KUBERNETES = "1.31"
# Kinds of the operators, whose schemas are not Kubernetes' own.
CUSTOM = ("ServiceMonitor", "SparkApplication", "PrometheusRule")
STORE = {"SLACKWATER_STATE_URL": "postgresql+psycopg://user@host/database"}


def mib(quantity: str) -> int:
    assert quantity.endswith(("Mi", "m"))
    return int(re.sub(r"\D", "", quantity))


@pytest.mark.parametrize("more", [{}, EVERYTHING], ids=["example", "everything"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_renders_to_valid_manifests(shape: str, more: dict[str, Any]) -> None:
    documents = render(example(shape, **more))
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    for pod in pods(documents):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": pod.spec}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)
    custom = {document["kind"] for document in documents} & set(CUSTOM)
    operators = {"ServiceMonitor", "PrometheusRule"} if more else set()
    assert custom == operators | ({"SparkApplication"} if shape == "spark-application" else set())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_endpoints_files_are_in_all_pods_and_follow_their_secret(shape: str) -> None:
    rendered = pods(render(example(shape, endpointSecret="spanner-tls")))
    for pod in (each for each in rendered if each.role != "test"):
        [volume] = (each for each in pod.spec["volumes"] if each["name"] == "endpoint")
        assert volume["secret"]["secretName"] == "spanner-tls"
        mounts = pod.spec["containers"][0]["volumeMounts"]
        [mount] = (each for each in mounts if each["name"] == "endpoint")
        assert mount["mountPath"] == "/etc/slackwater-endpoint"
        # A file that is mounted by itself never changes.
        assert "subPath" not in mount


def test_alerts_have_links_where_the_runbook_is_served() -> None:
    [rule] = of_kind(render(example("one-pod", **EVERYTHING)), "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert len(alerts) >= 10
    for alert in alerts:
        url = f"https://wiki.example.com/runbook.html#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == url
        assert "runbook" not in alert["annotations"]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_value_of_the_chart_changes_what_is_rendered(shape: str) -> None:
    """A value that no template reads is a promise that nothing keeps."""
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for key, value in values.items():
        names = value if isinstance(value, dict) and value else [None]
        for name in names:
            path = key if name is None else f"{key}.{name}"
            is_read = f".Values.{path}" in templates or (
                f"with .Values.{key}" in templates and f"{{{{ .{name}" in templates
            )
            assert is_read or path in ("image.digest", "image.tag"), path


def test_values_schema_and_readme_have_the_same_keys() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    readme = (CHART / "README.md").read_text()
    assert schema.keys() - {"global"} == values.keys()
    for key, value in values.items():
        nested = value if isinstance(value, dict) and "properties" in schema[key] else {}
        if key == "settings":
            continue
        assert nested.keys() == schema[key].get("properties", {}).keys(), key
        for path in [f"{key}.{name}" for name in nested] or [key]:
            row = re.search(rf"^\| `{re.escape(path)}` \| (.*?) \|", readme, re.MULTILINE)
            assert row, f"README.md has no row for {path}"
            default = value[path.rpartition(".")[2]] if nested else value
            shown = row.group(1).strip("`")
            assert yaml.safe_load(shown) == default or shown == "none", path


def test_settings_have_the_names_of_the_programs() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    in_chart = set(schema["properties"]["settings"]["properties"])
    assert in_chart == {*Settings.model_fields, "pipelines"} - {"http"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_program_takes_the_settings_of_each_shape(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "slackwater.yaml"
    documents = render(
        example(shape, settings={"epoch": {"target_records": 5_000_000, "max_span": "1d"}})
    )
    file.write_text(settings_of(documents))
    [driver] = [pod for pod in pods(documents) if pod.role == "driver"]
    variables = {entry["name"] for entry in driver.container["env"]}
    settings = load_settings(file, {n: v for n, v in STORE.items() if n in variables})
    assert settings.epoch.target_records == 5_000_000
    assert on_kubernetes(settings.spark.master) == (shape != "one-pod")
    assert settings.http.port == driver.container["ports"][0]["containerPort"] == 8080
    assert driver.spec["terminationGracePeriodSeconds"] >= settings.epoch.target_time / 1_000
    mounts = {mount["mountPath"] for mount in driver.container["volumeMounts"]}
    for place in (settings.sink.path, settings.sink.checkpoint):
        assert "://" in place or str(Path(place).parent) in mounts
    if settings.state.url.startswith("sqlite"):
        assert str(Path(settings.state.url.removeprefix("sqlite:///")).parent) in mounts


def test_several_pipelines_share_one_process(tmp_path: Path) -> None:
    values = example("executors")
    own = {name: values["settings"].pop(name) for name in ("sink",)}
    del values["settings"]["pipeline"]
    values["settings"]["pipelines"] = {
        name: {"sink": {**own["sink"], "path": f"s3a://b/{name}", "checkpoint": f"s3a://c/{name}"}}
        for name in ("orders", "customers")
    }
    (tmp_path / "slackwater.yaml").write_text(settings_of(render(values)))
    assert len(load_pipelines(tmp_path / "slackwater.yaml", STORE)) == 2


def test_ports_probes_and_paths_are_those_that_the_program_has() -> None:
    routes = (ROOT / "slackwater" / "monitoring" / "http.py").read_text()
    for shape in SHAPES:
        documents = render(example(shape, port=9000, serviceMonitor={"enabled": True}))
        [driver] = [pod for pod in pods(documents) if pod.role == "driver"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            request = driver.container[probe]["httpGet"]
            path, _, query = request["path"].partition("?")
            assert f'Route("{path}"' in routes
            name, _, value = query.partition("=")
            assert not query or f'query_params.get("{name}") == "{value}"' in routes
            assert request["port"] == "http"
        [monitor] = of_kind(documents, "ServiceMonitor")
        [endpoint] = monitor["spec"]["endpoints"]
        assert f'Route("{endpoint["path"]}"' in routes
        [service] = of_kind(documents, "Service")
        assert service["spec"]["publishNotReadyAddresses"], "the page says why it is not ready"
        [port] = service["spec"]["ports"]
        assert (port["name"], port["port"]) == (endpoint["port"], 9000)
        assert yaml.safe_load(settings_of(documents))["http"]["listen"] == "0.0.0.0:9000"
        [test] = [pod for pod in pods(documents) if pod.role == "test"]
        url = f"http://{service['metadata']['name']}:9000/readyz?standby=ready"
        assert url in test.container["command"][-1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_is_asked_for_by_the_services_names_with_token_and_certificate(
    shape: str, tmp_path: Path
) -> None:
    documents = render(
        example(shape, **{key: EVERYTHING[key] for key in ("http", "serviceMonitor")})
    )
    (tmp_path / "slackwater.yaml").write_text(settings_of(documents))
    settings = load_settings(tmp_path / "slackwater.yaml", STORE).http
    [service] = of_kind(documents, "Service")
    name = service["metadata"]["name"]
    for host in (name, f"{name}.cdc.svc:8080", f"{name}-0.{name}.cdc.svc.cluster.local"):
        assert is_own(host, own_names(settings))
    assert is_own("pipelines.example", own_names(settings))
    # The namespace may be a domain of its own in public DNS.
    assert not is_own(f"{name}.cdc", own_names(settings))
    [driver] = [pod for pod in pods(documents) if pod.role == "driver"]
    files = [settings.token_file, settings.tls and settings.tls.certificate]
    mounts = {mount["mountPath"]: mount["name"] for mount in driver.container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in driver.spec["volumes"]}
    secrets = [volumes[mounts[str(Path(str(file)).parent)]]["secret"] for file in files]
    assert [secret["secretName"] for secret in secrets] == ["page", "page-tls"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert driver.container[probe]["httpGet"]["scheme"] == "HTTPS"
    [monitor] = of_kind(documents, "ServiceMonitor")
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "page", "key": "token"}}
    assert is_own(endpoint["tlsConfig"]["serverName"], own_names(settings))
    [test] = [pod for pod in pods(documents) if pod.role == "test"]
    assert f"https://{name}:8080/readyz" in test.container["command"][-1]


@pytest.mark.parametrize(("status", "text"), [(200, "ok\n"), (503, "orders: starting\n")])
def test_helm_test_succeeds_when_the_pipelines_are_ready_and_else_says_why(
    status: int, text: str
) -> None:
    class Readiness(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz?standby=ready" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

    [test] = [pod for pod in pods(render(example("one-pod"))) if pod.role == "test"]
    with HTTPServer(("127.0.0.1", 0), Readiness) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        script = test.container["command"][-1].replace(
            "orders-slackwater:8080", f"127.0.0.1:{server.server_port}"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
    assert (done.returncode == 0) == (status == 200)
    assert text.strip() in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ("one-pod", {"shape": "two-pods"}, "shape"),
        ("one-pod", {"replica": 1}, "replica"),
        ("one-pod", {"driver": {"cores": 0}}, "driver/cores"),
        ("one-pod", {"driver": {"heap": "1g"}}, "heap"),
        ("one-pod", {"port": 70_000}, "port"),
        ("one-pod", {"image": {"digest": "latest"}}, "image/digest"),
        ("one-pod", {"settings": {"http": {"listen": "0.0.0.0:1"}}}, "http"),
        ("one-pod", {"settings": {"spark": {"master": "local"}}}, "master"),
        (
            "executors",
            {"settings": {"spark": {"conf": {"spark.executor.cores": "4"}}}},
            "spark.executor.cores",
        ),
        (
            "one-pod",
            {"settings": {"state": {"url": "postgresql+psycopg://me:secret@host/db"}}},
            "state/url",
        ),
        ("one-pod", {"secretEnv": {"SLACKWATER_STATE_URL": {"name": "x"}}}, "key"),
        ("one-pod", {"volume": {"accessMode": "Many"}}, "accessMode"),
        ("one-pod", {"settings": {"pipelines": {"orders": {}}}}, "settings"),
        ("one-pod", {"replicas": 2}, "several pods need a metadata store"),
        ("one-pod", {"volume": {"enabled": False}}, "the metadata store is lost"),
        (
            "one-pod",
            {"replicas": 2, "secretEnv": {"SLACKWATER_STATE_URL": {"name": "s", "key": "url"}}},
            "can't share a volume that is ReadWriteOnce",
        ),
        (
            "executors",
            {"settings": {"sink": {"path": "/data/changes", "checkpoint": "s3a://b/c"}}},
            "neither in an object store nor on the volume",
        ),
        ("executors", {"secretEnv": {}}, "without a volume the metadata store"),
        ("spark-application", {"replicas": 2}, "one driver"),
    ],
)
def test_wrong_values_are_refused_with_what_is_wrong(
    shape: str, changes: dict[str, Any], message: str
) -> None:
    values = {**example(shape, **changes)} if "secretEnv" not in changes else example(shape)
    if "secretEnv" in changes:
        values |= changes
    with pytest.raises(helm_python.HelmError, match=message):
        render(values)


def test_nothing_is_rendered_without_the_names_of_pipeline_source_and_sink() -> None:
    with pytest.raises(helm_python.HelmError, match="'pipeline', 'source', 'sink'"):
        render({})


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    for shape in SHAPES:
        report = helm_python.lint(CHART, example(shape), strict=True)
        worse = [entry for entry in report["messages"] if entry["severity"] >= 2]
        assert not worse
        assert not report["errors"]


@pytest.mark.parametrize("shape", SHAPES)
def test_new_settings_start_the_pod_again(shape: str) -> None:
    def driver(changes: dict[str, Any]) -> str:
        # The chart's own secret is another in each rendering.
        secret = {"name": "spark", "key": "secret"}
        documents = render(example(shape, sparkSecret=secret, **changes))
        [kind] = [d for d in documents if d["kind"] in ("StatefulSet", "SparkApplication")]
        spec = kind["spec"].get("driver", kind["spec"])
        return str(spec["template"]["metadata"]["annotations"])

    assert driver({}) == driver({})
    assert driver({}) != driver({"settings": {"epoch": {"trigger": "5s"}}})


@pytest.mark.parametrize("shape", SHAPES)
def test_the_image_is_named_once_and_is_the_same_everywhere(shape: str) -> None:
    documents = render(example(shape, image={"repository": "registry/own", "tag": "7"}))
    text = yaml.safe_dump_all(documents) + settings_of(documents)
    assert set(re.findall(r"[\w/]*own[:@]\w*", text)) == {"registry/own:7"}


def test_memory_is_heap_overhead_and_python_workers_and_cores_are_the_limit() -> None:
    sizes = {"cores": 3, "heapMiB": 1000, "jvmOverheadMiB": 500, "pythonMiB": 300}
    documents = render(example("one-pod", driver=sizes, pythonWorkerMiB=400))
    [driver] = [pod for pod in pods(documents) if pod.role == "driver"]
    limits = driver.container["resources"]["limits"]
    assert mib(limits["memory"]) == 1000 + 500 + 300 + 3 * 400
    assert driver.container["resources"]["requests"]["memory"] == limits["memory"]
    settings = yaml.safe_load(settings_of(documents))["spark"]
    assert settings["master"] == f"local[{limits['cpu']},4]"
    assert mib(settings["conf"]["spark.driver.memory"]) == 1000


@pytest.mark.parametrize("shape", ["executors", "spark-application"])
def test_an_executors_memory_has_room_for_a_python_worker_for_each_core(shape: str) -> None:
    executor = {"instances": 4, "cores": 3, "heapMiB": 2000, "jvmOverheadMiB": 500}
    driver = {"cores": 2, "heapMiB": 1000, "jvmOverheadMiB": 500, "pythonMiB": 300}
    documents = render(example(shape, executor=executor, driver=driver, pythonWorkerMiB=400))
    if shape == "executors":
        conf = yaml.safe_load(settings_of(documents))["spark"]["conf"]
        assert mib(conf["spark.executor.memoryOverhead"]) == 500 + 3 * 400
        assert mib(conf["spark.executor.memory"]) == 2000
        cores = conf["spark.executor.cores"]
        assert cores == conf["spark.kubernetes.executor.limit.cores"] == "3"
        [pod] = [pod for pod in pods(documents) if pod.role == "driver"]
        assert mib(pod.container["resources"]["limits"]["memory"]) == 1000 + 500 + 300
        return
    [application] = of_kind(documents, "SparkApplication")
    spec = application["spec"]
    assert mib(spec["executor"]["memoryOverhead"]) == 500 + 3 * 400
    assert (spec["executor"]["cores"], spec["executor"]["coreLimit"]) == (3, "3")
    assert mib(spec["driver"]["memory"]) + mib(spec["driver"]["memoryOverhead"]) == 1800


def limit_where_tasks_run(shape: str, **settings: Any) -> int:
    """Return the memory in MiB of a pod in which tasks run."""
    documents = render(example(shape, settings=settings))
    if shape == "one-pod":
        [pod] = [pod for pod in pods(documents) if pod.role == "driver"]
        return mib(pod.container["resources"]["limits"]["memory"])
    if shape == "executors":
        conf = yaml.safe_load(settings_of(documents))["spark"]["conf"]
        return mib(conf["spark.executor.memory"]) + mib(conf["spark.executor.memoryOverhead"])
    [application] = of_kind(documents, "SparkApplication")
    executor = application["spec"]["executor"]
    return mib(executor["memory"]) + mib(executor["memoryOverhead"])


def test_the_page_has_the_limits_of_memory_that_the_chart_sets_by_default() -> None:
    page = (DOCS / "kubernetes.md").read_text()
    rows = dict(
        re.findall(r"^\| (one-pod|driver|executor) \|.*\| ([\d,]+) \|$", page, re.MULTILINE)
    )
    [driver] = [pod for pod in pods(render(example("executors"))) if pod.role == "driver"]
    assert rows == {
        "one-pod": f"{limit_where_tasks_run('one-pod'):,}",
        "driver": f"{mib(driver.container['resources']['limits']['memory']):,}",
        "executor": f"{limit_where_tasks_run('executors'):,}",
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pod_with_tasks_has_room_for_the_reader_process_of_continuous_reading(shape: str) -> None:
    bounded = limit_where_tasks_run(shape)
    default = ReadingSettings().reader_memory + 150
    continuous = {"reading": "continuous"}
    assert limit_where_tasks_run(shape, epoch={"reading": "bounded"}) == bounded
    assert limit_where_tasks_run(shape, epoch=continuous) == bounded + default
    more = {**continuous, "reader_memory": 1_000}
    assert limit_where_tasks_run(shape, epoch=more) == bounded + 1_150


def test_the_reader_process_has_room_for_the_records_of_each_pipeline() -> None:
    bounded = limit_where_tasks_run("one-pod")
    values = example("one-pod")
    sink = values["settings"].pop("sink")
    pipelines: dict[str, Any] = {
        "orders": {"epoch": {"reader_memory": 100}},
        "customers": {},
        "prices": {"epoch": {"reading": "bounded"}},
    }
    for name, own in pipelines.items():
        own["sink"] = {**sink, "path": f"{sink['path']}/{name}"}
    del values["settings"]["pipeline"]
    values["settings"] |= {"pipelines": pipelines, "epoch": {"reading": "continuous"}}
    [pod] = [pod for pod in pods(render(values)) if pod.role == "driver"]
    memory = mib(pod.container["resources"]["limits"]["memory"])
    assert memory == bounded + 150 + 100 + ReadingSettings().reader_memory


def test_a_driver_without_tasks_needs_nothing_for_continuous_reading() -> None:
    def memory(**settings: Any) -> str:
        documents = render(example("executors", settings=settings))
        [pod] = [pod for pod in pods(documents) if pod.role == "driver"]
        return str(pod.container["resources"]["limits"]["memory"])

    assert memory(epoch={"reading": "continuous"}) == memory()
