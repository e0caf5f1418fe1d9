"""A check of everything that a pipeline needs, which writes nothing: `slackwater check`."""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import slackwater
from slackwater.commands.error_texts import exit_code, text_of
from slackwater.config.filters import filter_of, globs_without_match, tables_to_read
from slackwater.config.settings import FilterSettings, Http, Settings
from slackwater.errors import HttpError, SettingsError
from slackwater.extras import require_extras
from slackwater.monitoring.http_socket import listen
from slackwater.pipeline.pipeline_source import PipelineSource, connect_source, with_tables
from slackwater.pipeline.source import SourceHandle, check_shown_changes, columns_of_new_types
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.sink_needs import all_jars
from slackwater.printing import show
from slackwater.reader.database.schema_changes import schema_changes
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.transport.ddl_updates import PERMISSION
from slackwater.secrecy import masked
from slackwater.state.errors import StoreMissingError
from slackwater.state.store import Store

if TYPE_CHECKING:
    from slackwater.monitoring.http_access import TokenFile

_ANSWER_S_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Check:
    """The result for one thing that a pipeline needs.

    Attributes:
        name: the thing, such as "metadata store".
        detail: its description for people; empty if there is a problem.
        problem: what is wrong with it; None if nothing is.
    """

    name: str
    detail: str
    problem: Exception | None = None


def checks(settings: Settings) -> Iterator[Check]:
    """Connect to everything that the pipeline needs; write nothing, and make no store."""
    yield _check("java", lambda: str(find_java()))

    def installed() -> str:
        require_extras([settings])
        return str(Path(str(slackwater.__file__)).parent)

    yield _check("slackwater", installed)
    sources: list[PipelineSource] = []

    def look_up() -> str:
        sources.append(connect_source(settings))
        return sources[0].text(settings)

    yield _check("change stream", look_up)
    if sources:

        def start() -> str:
            too_old = sources[0].check_new(settings)
            gone = ", too old by now: the pipeline goes on where it is" if too_old else ""
            return f"{settings.source.start}{gone}"

        yield _check("start", start)
    if sources and sources[0].has_tables:
        yield _check("column types", lambda: _check_types(with_tables(sources[0])))
        if settings.filter != FilterSettings():
            yield _check("filter", lambda: _check_filter(settings, with_tables(sources[0])))
        if settings.sink.needs_all_changes:
            yield _check("schema changes", lambda: _check_schema_changes(with_tables(sources[0])))
    yield _check("metadata store", lambda: _check_store(settings))
    yield _check("sink", lambda: _check_sink(settings))
    if settings.http.listen is not None:
        yield _check("http", lambda: _check_address(settings))


def _check(name: str, detail: Callable[[], str]) -> Check:
    try:
        return Check(name, detail())
    except Exception as error:  # noqa: BLE001 - each is reported, and the rest is checked
        return Check(name, "", error)


def _check_filter(settings: Settings, source: SourceHandle) -> str:
    check_shown_changes(settings, source)
    tables = watched_tables(source.connection, source.description.dialect)
    record_filter = filter_of(settings)
    if wrong := globs_without_match(tables, record_filter):
        raise SettingsError(wrong[0].message, wrong[0].hint)
    passing = tables_to_read(tables, record_filter)
    return f"{len(passing)} of {len(tables)} watched tables"


def _check_types(source: SourceHandle) -> str:
    new_types = columns_of_new_types(source)
    if not new_types:
        return "no new types"
    named = (f"{new['table']}.{new['column']} {new['type']}" for new in new_types)
    return f"{len(new_types)} columns stay texts, as Spanner sends them: {', '.join(named)}"


def _check_schema_changes(source: SourceHandle) -> str:
    if schema_changes(source.connection) is None:
        return f"tables that exchange names are not seen: the credentials lack {PERMISSION}"
    return "DDL statements can be listed"


def _check_store(settings: Settings) -> str:
    url = settings.state.url
    try:
        store = Store.open(url, migrate=False)
    except StoreMissingError:
        path = url.removeprefix("sqlite:///")
        if path == url or Path(path).exists():
            return "is empty, will be set up"
        _require_writable(url, Path(path).parent)
        return f"{url} (will be created)"
    with closing(store):
        pipeline = store.pipeline(settings.pipeline)
        return f"{store.url}, {'known pipeline' if pipeline else 'new pipeline'}"


def _check_sink(settings: Settings) -> str:
    for text in (settings.sink.place_path, settings.sink.checkpoint):
        if "://" not in str(text) or text.startswith("file://"):
            _require_writable(text, Path(text.removeprefix("file://")))
    spark = settings.spark
    jars = all_jars(settings.sink.spark_needs, spark.conf, spark.jars, os.environ)
    settings.sink.check_places(spark.conf, jars)
    settings.sink.check()
    return f"{settings.sink.format} in {settings.sink.path}"


def _require_writable(what: str, folder: Path) -> None:
    """Check that a folder can be written, or can be made.

    Raises:
        SettingsError: it can't.
    """
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise SettingsError(
            f"{what} can't be written: {nearest} is not a writable folder.",
            "Choose another place, or make that one a folder that this user may write to",
        )


def _check_address(settings: Settings) -> str:
    """Listen for a moment, unless this same pipeline is served there already.

    Raises:
        HttpError: the address can't be listened on, or a file can't be used.
    """
    # With its server, which is not installed without the extra http.
    from slackwater.monitoring.http import secrets_of

    http = settings.http
    token, _ = secrets_of(http)
    try:
        listen(http).close()
    except HttpError:
        if settings.pipeline not in _pipelines_served(http, token):
            raise
        return f"{http.listen}, where the pipeline is running"
    return str(http.listen)


def _pipelines_served(http: Http, token: "TokenFile | None") -> list[str]:
    """Return the names of the pipelines whose page is at an address."""
    connection = HTTPConnection(http.host, http.port, timeout=_ANSWER_S_MAX)
    if http.tls is not None:
        # Trust only its own certificate, under any name: nothing else is sent the token.
        context = ssl.create_default_context(cafile=http.tls.certificate)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        connection = HTTPSConnection(http.host, http.port, timeout=_ANSWER_S_MAX, context=context)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token.text}"}
        connection.request("GET", "/api/pipelines", headers=headers)
        return [each["pipeline"] for each in json.load(connection.getresponse())]
    except (OSError, HTTPException, ValueError, TypeError, KeyError):
        return []
    finally:
        connection.close()


def print_checks(pipelines: Sequence[Settings]) -> int:
    """Print the results for the settings of each pipeline; return the exit code."""
    worst = 0
    for settings in pipelines:
        if len(pipelines) > 1:
            show(f"{settings.pipeline}:")
        for result in checks(settings):
            if result.problem is None:
                show(f"ok    {result.name}: {masked(result.detail)}")
            else:
                worst = max(worst, exit_code(result.problem))
                show(f"wrong {result.name}: {text_of(result.problem)}")
    return worst
