"""The HTTP server of a pipeline that has not begun, without Spark and without Spanner."""

import http.client
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from slackwater.config.settings import Http, Tls
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.http import serving
from slackwater.monitoring.metrics import Metrics
from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.state.store import Store


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[tuple[str, int]]:
    """Serve a pipeline that has not begun; yield host and port."""
    store = Store.open(f"sqlite:///{folder}/state.db", migrate=True)
    store.ensure_pipeline("orders", "stream")
    supervisor = SimpleNamespace(
        name="orders",
        settings=SimpleNamespace(source=SimpleNamespace(service="Spanner")),
        store=store,
        clock=SpannerClock(time.time_ns),
        lease=SimpleNamespace(is_held=True, unrenewed_s=None),
        unrecorded=None,
        stands_by=False,
        source=None,
        executors=lambda: None,
    )
    with serving(
        Http(listen="127.0.0.1:0", **settings),
        [cast(Any, supervisor)],
        EpochHistory(),
        Metrics(),
    ) as address:
        host, _, port = str(address).rpartition("//")[2].rpartition(":")
        yield host, int(port)
    store.close()


def get(place: tuple[str, int], path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Return the status, the header and the text of an answer."""
    connection = http.client.HTTPConnection(*place, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, answer.read().decode()
    finally:
        connection.close()


def certificate(folder: Path, name: str) -> Tls:
    """Make a certificate for 127.0.0.1 that shows a name."""
    key, file = folder / "tls.key", folder / "tls.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext"]
    command += ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return Tls(certificate=str(file), key=str(key))
