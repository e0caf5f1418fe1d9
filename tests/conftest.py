"""Real servers for the tests; a missing one fails them with a message that says how to get it."""

import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from slackwater import secrecy
from tests.support.repository import BUILD

# A settings file with a password is one that others can't read.
os.umask(0o077)
# By default a collection of garbage begins with each 700 new objects: a tenth of the time of the
# quick tests, and more of the time in which modules are loaded.
gc.set_threshold(20_000)
# As the program does, before gRPC is loaded: see slackwater.cli.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# On a busy machine the making of examples is slow for reasons of its own.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("busy"), max_examples=25)
settings.register_profile("long", settings.get_profile("busy"), max_examples=1_000)
settings.load_profile("busy")

_FIXTURES = (
    "tests.support.emulators",
    "tests.install.environments",
    "tests.support.postgres",
    "tests.spark.sessions",
    "tests.support.stores",
)

# What a JVM of the tests would compile twice, or collect side by side, takes longer than it saves.
# And the default sizes are for other programs: with the code cache full, methods were dropped and
# compiled again, a collection of all came at each step of the metaspace, and a young one four times
# as often. With these sizes the tests' JVMs take a quarter less CPU. A program's small launcher
# would say on its standard output that they do not fit.
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m -Xmn384m"
    " -Xlog:gc+ergo=error"
)
os.environ.setdefault("JDK_JAVA_OPTIONS", _JAVA_OPTIONS)

# What takes longest begins first, so that the workers end together. The rules of the house parse
# all files, which one worker is to do.
_SLOW = (
    *("tests", "install", "outputs", "spark", "faults", "emulator", "synthetic"),
    *("simulation", "databases", "unit"),
)

# After the others of their folder, whose Spark is ended for theirs.
_WITH_OTHER_SPARK = ("test_bigtable_source", "test_pipeline_session", "test_source")

_CLASSES = BUILD / f"classes-{importlib.metadata.version('pyspark')}.jsa"


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures where tests run, and make Spark start sooner.

    What only hands the tests to its workers does not wait for all that the fixtures need. The
    archive for Spark takes as long as half a dozen starts save.
    """
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        for name in _FIXTURES:
            config.pluginmanager.import_plugin(name)
    is_of_all_tests = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_of_all_tests and not is_worker and not _is_fresh():
        _CLASSES.unlink(missing_ok=True)
        made = [sys.executable, "-m", "slackwater.cli", "class-archive", str(_CLASSES)]
        subprocess.run(made, check=True, capture_output=True, timeout=300)
    if _CLASSES.exists():
        os.environ.setdefault("SLACKWATER_SPARK_CLASS_ARCHIVE", str(_CLASSES))


def _is_fresh() -> bool:
    """Return whether the archive is newer than the jars; the JVM ignores one that is not."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    installed = Path(spark.origin).stat().st_mtime
    return _CLASSES.exists() and _CLASSES.stat().st_mtime > installed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Leave the tests, and all that they import, out of each later collection of garbage."""
    gc.collect()
    gc.freeze()


def _place(item: pytest.Item) -> tuple[int, bool]:
    folder = item.path.parent.name
    place = _SLOW.index(folder) if folder in _SLOW else len(_SLOW)
    return place, item.path.stem in _WITH_OTHER_SPARK


@pytest.fixture(autouse=True)
def _secrets_of_one_test() -> Iterator[None]:
    """Forget the secrets of a test's settings: one may be an ordinary word of another's."""
    before = set(secrecy._SECRETS)
    yield
    secrecy._SECRETS.intersection_update(before)
