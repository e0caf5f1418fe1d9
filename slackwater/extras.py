"""The parts of the program that are installed with an extra, such as slackwater[delta].

The package alone reads change streams, in a notebook with its own Spark and by `slackwater tail`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from slackwater.errors import MissingExtraError

if TYPE_CHECKING:
    from slackwater.config.settings import Settings

# The modules that an extra brings, by its name in pyproject.toml.
MODULES: Final[Mapping[str, Sequence[str]]] = {
    "spark": ("pyspark",),
    "delta": ("deltalake", "pyroaring"),
    "iceberg": ("pyiceberg",),
    "kafka": ("confluent_kafka", "fastavro"),
    "bigquery": ("google.cloud.bigquery", "google.cloud.bigquery_storage_v1"),
    "bigtable": ("google.cloud.bigtable_v2", "google.cloud.bigtable_admin_v2"),
    "pubsub": ("google.pubsub_v1", "fastavro"),
    "ducklake": ("duckdb", "duckdb_extension_ducklake"),
    "postgres": ("adbc_driver_postgresql", "psycopg"),
    "spanner-store": ("google.cloud.sqlalchemy_spanner",),
    "http": ("starlette", "uvicorn", "prometheus_client"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter"),
}
_STORES: Final = {"postgresql": "postgres", "spanner": "spanner-store"}


def needed(settings: Settings) -> list[str]:
    """Return the extras that a pipeline needs."""
    database = settings.state.url.partition(":")[0].partition("+")[0]
    formats = [settings.sink.format, settings.sink.kind]
    asked = [
        "spark",
        settings.source.kind,
        *formats,
        *(_STORES.get(name, "") for name in (database, *formats)),
    ]
    if settings.http.listen is not None:
        asked.append("http")
    if settings.trace.endpoint is not None:
        asked.append("otel")
    return [extra for extra in dict.fromkeys(asked) if extra in MODULES]


def require_extras(pipelines: Iterable[Settings]) -> None:
    """Require that the extras that pipelines need are installed.

    Raises:
        MissingExtraError: it is not; the hint has the command.
    """
    extras = dict.fromkeys(extra for settings in pipelines for extra in needed(settings))
    missing = [extra for extra in extras if not all(map(_is_installed, MODULES[extra]))]
    if missing:
        raise missing_error(missing)


def missing_error(extras: Sequence[str]) -> MissingExtraError:
    """Return the error that explains how to install extras."""
    return MissingExtraError(
        f"these parts of slackwater are not installed: {', '.join(extras)}.",
        f"pip install 'slackwater[{','.join(extras)}]'",
    )


def extra_of(error: BaseException) -> str | None:
    """Return the extra that brings the module which an import did not find; None for any other."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None:
        return None
    return next((extra for extra, modules in MODULES.items() if _brings(modules, name)), None)


def _brings(modules: Sequence[str], name: str) -> bool:
    """Return whether a module is one of these, a package around one, or a module in one."""
    return any(f"{m}.".startswith(f"{name}.") or name.startswith(f"{m}.") for m in modules)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # A package around it is missing.
        return False
