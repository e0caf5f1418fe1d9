"""A stranger who follows docs/object-stores.md word for word gets what it says.

The page's blocks are taken in their order. Only the bucket's name, the paths of its machine and the
store's address with its credentials are the test's. The recipes: test_object_stores.py.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable

from slackwater.config.load import load_pipelines
from slackwater.demo.load import Load
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.spark.test_connectors import PLACES, require_equal_mirrors
from tests.support import command_line, services
from tests.support.command_line import in_own_process, output_of
from tests.support.emulators import NewDatabase
from tests.support.object_stores import STORES, ServedStore
from tests.support.pages import blocks
from tests.support.rest_catalog import rest_catalog
from tests.support.truths import require_equal, truth_of

PARTITION_ALIVE_S = 20

PAGE = "object-stores.md"
A_CHANGELOG, WITH_OPTIONS, COMPACTED, IN_DELTA, MIRRORS, IN_A_CATALOG, BY_SPARK = blocks(
    PAGE, "yaml"
)
COMMANDS = blocks(PAGE, "sh")
_COMMAND_S_MAX = 900


class Stranger:
    """Follows the page with a database of its own.

    Args:
        stream: the change stream.
        folder: where the settings and the metadata store are.
    """

    def __init__(self, stream: ChangeStream, folder: Path) -> None:
        self.stream = stream
        self.folder = folder
        self.connection = Connection(stream)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        self.load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        self.config = folder / "slackwater.yaml"

    def set_up(self, block: str, **sink: Any) -> None:
        """Write the settings of a block, with more keys of the sink's."""
        values = services.settings(self.stream, self.folder, format_rfc3339(self.start_ns))
        del values["sink"]
        of_page = yaml.safe_load(block)
        values["spark"] |= of_page.pop("spark", {})
        values |= of_page
        for key, value in sink.items():
            present = values["sink"].get(key)
            values["sink"][key] = {**present, **value} if isinstance(present, dict) else value
        self.config.write_text(yaml.safe_dump(values))

    def change(self) -> int:
        """Change rows; return a time after that."""
        self.load.run(transactions_per_second=20, seconds=1)
        return self.connection.strong_read_timestamp_ns()

    def follow(self, commands: str, *more: str) -> str:
        """Run a block's commands here, the last until it has caught up; return what they said."""
        said = ""
        for command in commands.splitlines():
            program, name, *arguments = command.split()
            assert program == "slackwater"
            arguments = [str(self.config) if a == "slackwater.yaml" else a for a in arguments]
            until = ["--until-caught-up"] if name == "run" else []
            done = command_line.slackwater(name, *arguments, *until, *more)
            assert done.returncode == 0, done.stdout + done.stderr
            said += done.stdout
        return said

    def require_equal(self, output: pa.Table, until_ns: int) -> None:
        """Require that the output has what a plain client reads, up to a time at least."""
        require_equal(output, truth_of(self.stream, self.start_ns, until_ns))


def in_bucket(block: str, store: ServedStore) -> str:
    return block.replace("s3://my-bucket", store.path)


def download(store: ServedStore, folder: str, to: Path) -> Path:
    store.download(folder, to)
    return to


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
def test_a_changelog_and_a_delta_table_by_the_page(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    """The changelog in Cloud Storage, and with options in S3, where the table is."""
    with STORES["gs"]() as store:
        (tmp_path / "gs").mkdir()
        stranger = Stranger(new_database(), tmp_path / "gs")
        stranger.set_up(in_bucket(A_CHANGELOG, store), storage_options=store.options)
        until_ns = stranger.change()
        assert "ok    sink: parquet in" in stranger.follow(COMMANDS[0])
        stranger.require_equal(read_changelog(download(store, "changes", tmp_path / "b")), until_ns)

    with STORES["s3"]() as store:
        stranger = Stranger(new_database(), tmp_path)
        # The region is one of the options that it has beside the stand-in's.
        stranger.set_up(in_bucket(WITH_OPTIONS, store), storage_options=store.options)
        stranger.change()
        assert "ok    sink: parquet in" in stranger.follow(COMMANDS[0])
        # "If it is gone or behind, the pipeline makes a new one".
        (settings,) = load_pipelines(stranger.config, os.environ)
        shutil.rmtree(settings.sink.checkpoint)
        stranger.set_up(in_bucket(COMPACTED, store), storage_options=store.options)
        until_ns = stranger.change()
        stranger.follow(COMMANDS[0])
        stranger.require_equal(read_changelog(download(store, "changes", tmp_path / "a")), until_ns)

        (tmp_path / "delta").mkdir()
        of_table = Stranger(new_database(), tmp_path / "delta")
        of_table.set_up(in_bucket(IN_DELTA, store), storage_options=store.options)
        until_ns = of_table.change()
        assert "ok    sink: delta in" in of_table.follow(COMMANDS[0])
        table = DeltaTable(f"{store.path}/table", storage_options=store.options)
        of_table.require_equal(table.to_pyarrow_table(), until_ns)


def follow_in_own_process(stranger: Stranger, environ: Mapping[str, str]) -> None:
    """Run both commands of the page, change rows, run again, and compare the mirrors."""

    def said(*arguments: str) -> str:
        done = in_own_process(stranger.config, environ, *arguments, seconds_max=_COMMAND_S_MAX)
        return output_of(done)

    stranger.change()
    assert "ok    sink: " in said("check")
    said("run", "--until-caught-up")
    stranger.change()
    said("run", "--until-caught-up")
    require_equal_mirrors(stranger.config, environ)


@pytest.mark.long
def test_mirrors_in_a_bucket_by_the_page(new_database: NewDatabase, tmp_path: Path) -> None:
    stranger = Stranger(new_database(), tmp_path)
    with STORES["s3"]() as store:
        stranger.set_up(in_bucket(MIRRORS, store), storage_options=store.options)
        # Neither fetched before, nor to be had.
        environ = {
            "SPANNER_EMULATOR_HOST": stranger.stream.endpoint.target,
            "SLACKWATER_SPARK_CONF": json.dumps({"spark.jars.ivy": str(tmp_path / "ivy")}),
            "DEFAULT_ARTIFACT_REPOSITORY": "file:///no",
        }
        follow_in_own_process(stranger, environ)
        assert not list((tmp_path / "ivy").rglob("*.jar"))


@pytest.mark.long
def test_mirrors_and_a_checkpoint_in_cloud_storage_by_the_page(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stranger = Stranger(new_database(), tmp_path)
    with PLACES["gs"](tmp_path) as place:
        of_place = {"storage_options": place.storage_options}
        stranger.set_up(BY_SPARK.replace("gs://my-bucket", place.path), **of_place)
        values = yaml.safe_load(stranger.config.read_text())
        values["spark"]["conf"] = place.conf
        stranger.config.write_text(yaml.safe_dump(values))
        host = {"SPANNER_EMULATOR_HOST": stranger.stream.endpoint.target}
        follow_in_own_process(stranger, {**place.environ, **host})


@pytest.mark.long
def test_mirrors_in_a_catalog_by_the_page(new_database: NewDatabase, tmp_path: Path) -> None:
    stranger = Stranger(new_database(), tmp_path)
    with rest_catalog(tmp_path) as catalog:
        # "the namespace has to exist"
        catalog.make_namespace("orders")
        block = IN_A_CATALOG.replace("/var/lib/slackwater", str(tmp_path / "disk"))
        stranger.set_up(block.replace("https://catalog.example.com", catalog.uri))
        values = yaml.safe_load(stranger.config.read_text())
        conf = values["spark"]["conf"]
        of_page = dict(conf)
        assert catalog.spark_conf.items() >= of_page.items()
        conf |= catalog.spark_conf
        stranger.config.write_text(yaml.safe_dump(values))
        host = {"SPANNER_EMULATOR_HOST": stranger.stream.endpoint.target}
        follow_in_own_process(stranger, host)
        assert catalog.store.names("warehouse/orders/Orders/")
