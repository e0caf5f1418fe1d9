"""Spark reads and writes an object store by the scheme of the path: the connector comes with it.

The settings name the stand-in, and what differs between it and the store; a user needs none.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import SparkContext
from pyspark.sql import SparkSession

from slackwater.commands.jars import FORMATS
from slackwater.demo.load import Load
from slackwater.pipeline.spark.jar_cache import ivy_folder
from slackwater.pipeline.spark.jvm import listed_jars
from slackwater.pipeline.spark.pinned_jars import require_pinned
from slackwater.reader.change_stream import Dialect
from tests.support import azurite, fake_gcs
from tests.support.command_line import PROGRAM, in_own_process, output_of
from tests.support.emulators import NewDatabase
from tests.support.hadoop_stores import hadoop, in_s3
from tests.support.object_stores import BUCKET, azure, s3
from tests.support.services import settings


@dataclass
class Place:
    """A bucket that Hadoop's connector reaches.

    Attributes:
        path: its URL.
        conf: spark.conf, which names the stand-in.
        environ: the credentials, as the store's users have them.
        storage_options: for the driver's own client, which has the mirrors.
        tokens: the requests for tokens that were answered; None if there are no tokens.
    """

    path: str
    conf: dict[str, str]
    environ: dict[str, str]
    storage_options: dict[str, str]
    tokens: list[str] | None = None


@contextmanager
def s3_place(_: Path) -> Iterator[Place]:
    with s3() as store:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        yield Place(f"s3a://{BUCKET}", hadoop(in_s3(store)), keys, store.options)


@contextmanager
def gs_place(folder: Path) -> Iterator[Place]:
    file = folder / "account.json"
    with fake_gcs.cloud_storage() as store, fake_gcs.service_account(file) as tokens:
        keys = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
        yield Place(store.path, store.spark_conf, keys, store.options, tokens)


@contextmanager
def azure_place(_: Path) -> Iterator[Place]:
    with azure() as store:
        keys = {
            "AZURE_STORAGE_ACCOUNT_NAME": azurite.ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY,
        }
        yield Place(store.hadoop_path, store.spark_conf, keys, store.options)


Open = Callable[[Path], AbstractContextManager[Place]]
PLACES: dict[str, Open] = {"s3a": s3_place, "gs": gs_place, "abfs": azure_place}
# By which `slackwater jars` has the connectors.
NAMES = {"s3a": "s3a", "gs": "gs", "abfs": "abfss"}


def test_spark_writes_and_reads_s3_and_keeps_a_checkpoint_there(session: SparkSession) -> None:
    """The session has no package of the test's: what its sinks need is there."""
    spark = session.newSession()
    with s3() as store:
        keys = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
        for key, value in {**in_s3(store), **keys}.items():
            spark.conf.set(key, value)
        path = f"s3a://{BUCKET}"
        spark.range(100).write.parquet(f"{path}/in")
        stream = spark.readStream.schema("id long").parquet(f"{path}/in").writeStream
        query = stream.option("checkpointLocation", f"{path}/checkpoint")
        query.trigger(availableNow=True).start(f"{path}/out").awaitTermination()
        assert spark.read.parquet(f"{path}/out").count() == 100
        # A rename is a copy by Amazon's client, over Spark's Netty.
        assert store.names("checkpoint/commits/0")


def require_equal_mirrors(config: Path, environ: Mapping[str, str]) -> None:
    """Have the program compare the mirrors of the demo's tables with the tables."""
    # Customers has fractions of a second, which the emulator drops from records.
    tables = ("--table", "Orders", "--table", "Payments")
    done = in_own_process(config, environ, "verify", "--json", *tables)
    proofs = output_of(done).splitlines()
    assert len(proofs) == 2
    assert all(json.loads(proof)["is_equal"] for proof in proofs), proofs


@pytest.mark.long
@pytest.mark.parametrize("scheme", PLACES)
def test_a_mirror_and_its_checkpoint_need_nothing_but_the_path(
    scheme: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
    values: dict[str, Any] = settings(stream, tmp_path, "now")
    with ExitStack() as stack:
        place = stack.enter_context(PLACES[scheme](tmp_path))
        values["sink"] = {
            "kind": "mirror",
            "path": f"{place.path}/tables",
            "checkpoint": f"{place.path}/checkpoint",
            "storage_options": place.storage_options,
        }
        values["spark"]["conf"] = place.conf
        config = tmp_path / "slackwater.yaml"
        config.write_text(yaml.safe_dump(values))
        environ = {**place.environ, "SPANNER_EMULATOR_HOST": stream.endpoint.target}
        load.run(transactions_per_second=20, seconds=2)
        output_of(in_own_process(config, environ, "run", "--until-caught-up"))
        # As in the image: nothing is fetched.
        jars = tmp_path / "jars"
        subprocess.run([*PROGRAM, "jars", str(jars), NAMES[scheme]], check=True)
        environ |= {"SLACKWATER_SPARK_JARS": str(jars), "DEFAULT_ARTIFACT_REPOSITORY": "file:///no"}
        load.run(transactions_per_second=20, seconds=2)
        output_of(in_own_process(config, environ, "run", "--until-caught-up"))
        require_equal_mirrors(config, environ)
        assert place.tokens is None or place.tokens, "the account's key was used"


def test_every_jar_that_was_fetched_is_one_that_was_tested(session: SparkSession) -> None:
    """Those, too, that a sink's package depends on: the list has them all."""
    jars = [jar for jar in listed_jars(SparkContext._gateway) if jar.parent.name == "jars"]
    assert len(jars) > len(FORMATS)
    require_pinned(jars, ivy_folder(None), has_own_packages=False)
