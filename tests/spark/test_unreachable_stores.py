"""A store that Hadoop's connector does not reach, or a bucket that is not there, is named at once.

With their own settings connectors try for two minutes, and end with a stack trace of Java's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from slackwater.reader.change_stream import ChangeStream
from slackwater.spark_sink.java import hadoop_conf
from tests.spark.test_connectors import PLACES
from tests.support import command_line, services
from tests.support.command_line import in_own_process
from tests.support.emulators import NewDatabase
from tests.support.hadoop_stores import hadoop, in_s3
from tests.support.object_stores import BUCKET, s3

NOBODY = "127.0.0.1:1"
# By which each connector is sent to nobody.
ADDRESSES = {
    "s3a": {"fs.s3a.endpoint": f"http://{NOBODY}"},
    "gs": {"fs.gs.storage.root.url": f"http://{NOBODY}/"},
    "abfs": {"fs.azure.abfs.endpoint": NOBODY},
}
UNREACHED = "the object store does not answer", "Check the network", 1
NO_BUCKET = "the bucket or container does not exist", "Correct its name", 2


@pytest.fixture
def s3a_conf(session: SparkSession) -> Iterator[dict[str, str]]:
    """Return settings of the connector, which the process has for the time of the test."""
    with s3() as store:
        keys = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
        settings = {**in_s3(store), **keys}
        conf = hadoop_conf(session)
        before = {name: conf.get(name) for name in settings}
        for name, value in settings.items():
            conf.set(name, value)
        yield settings
        for name, value in before.items():
            conf.unset(name) if value is None else conf.set(name, value)


def with_checkpoint(stream: ChangeStream, folder: Path, checkpoint: str) -> Path:
    """Return the file of a pipeline whose checkpoint alone is in the store."""
    values: dict[str, Any] = services.settings(stream, folder, "now")
    values["sink"]["checkpoint"] = checkpoint
    config = folder / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))
    return config


def require_named(text: str, path: str, answer: tuple[str, str, int], code: int) -> None:
    says, remedy, expected = answer
    (said,) = [line for line in text.splitlines() if line.startswith("slackwater: ")]
    assert path in said
    assert says in said
    assert remedy in text
    assert "Traceback" not in text
    assert "\tat " not in text
    assert code == expected


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize(
    ("bucket", "address", "answer"),
    [(BUCKET, ADDRESSES["s3a"], UNREACHED), ("nobodys", {}, NO_BUCKET)],
    ids=["nobody answers", "no bucket"],
)
def test_run_names_what_is_wrong_with_a_store_before_it_reads(
    bucket: str,
    address: dict[str, str],
    answer: tuple[str, str, int],
    session: SparkSession,
    s3a_conf: dict[str, str],
    new_database: NewDatabase,
    tmp_path: Path,
) -> None:
    for name, value in address.items():
        hadoop_conf(session).set(name, value)
    assert address.keys() <= s3a_conf.keys()
    path = f"s3a://{bucket}/checkpoint"
    config = with_checkpoint(new_database(), tmp_path, path)
    done = command_line.slackwater("run", "-c", str(config), "--until-caught-up")
    require_named(done.stderr, path, answer, done.returncode)
    assert not (tmp_path / "changes").exists()


@pytest.mark.long
@pytest.mark.parametrize("scheme", PLACES)
@pytest.mark.parametrize("answer", [UNREACHED, NO_BUCKET], ids=["nobody answers", "no bucket"])
def test_each_connector_names_it(
    scheme: str, answer: tuple[str, str, int], new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    with PLACES[scheme](tmp_path) as place:
        path, conf = f"{place.path}/checkpoint", dict(place.conf)
        if answer is UNREACHED:
            conf |= hadoop(ADDRESSES[scheme])
        else:
            path = path.replace(f"://{BUCKET}", "://nobodys")
        config = with_checkpoint(stream, tmp_path, path)
        values = yaml.safe_load(config.read_text())
        values["spark"]["conf"] = conf
        config.write_text(yaml.safe_dump(values))
        host = {"SPANNER_EMULATOR_HOST": stream.endpoint.target}
        environ = {**place.environ, **host}
        done = in_own_process(config, environ, "run", "--until-caught-up")
    require_named(done.stderr, path, answer, done.returncode)
