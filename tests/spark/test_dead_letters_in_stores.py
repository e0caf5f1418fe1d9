"""Dead letters in an object store, which renames no folder: no process takes any away."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import hadoop_conf, java_raised, jvm_of
from slackwater.spark_sink.output.dead_letters import FOLDER, DeadLetters
from slackwater.spark_sink.output.epoch_directory import EpochDirectory
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import latest_changes
from tests.epoch_rows import frame, low_watermark, record
from tests.hadoop_stores import ALL, NOTED, reached_by
from tests.object_stores import BUCKET, ServedStore, nobody, nothing

TABLE = "sales.Orders"
LETTERS = f"{FOLDER}/letters/part-00000.json"
CONTENT = b"letters"
# More than publishing takes.
REQUESTS_MAX = 40


@dataclass
class Place:
    """A folder of an object store."""

    spark: SparkSession
    store: ServedStore
    bucket: str
    folder: str

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.folder}"

    def directory(self) -> EpochDirectory:
        """Return the folder as another process has it."""
        return EpochDirectory(self.spark, self.path, uuid.uuid4().hex)

    def stage(self, directory: EpochDirectory) -> None:
        for name, content in (("_SUCCESS", b""), (f"part-{uuid.uuid4().hex}.json", CONTENT)):
            path = jvm_of(self.spark).org.apache.hadoop.fs.Path(directory.staging(0), name)
            stream = path.getFileSystem(hadoop_conf(self.spark)).create(path, True)
            stream.write(bytearray(content))
            stream.close()

    def files(self, below: str) -> dict[str, bytes]:
        """Return the names and contents of the files in a folder, without marks of folders."""
        names = [
            name for name in self.store.names(f"{self.folder}/{below}") if name.endswith(".json")
        ]
        reader: pafs.FileSystem = self.store.files()
        return {name: reader.open_input_stream(f"{BUCKET}/{name}").read() for name in names}


OF_ALL = pytest.mark.parametrize("stores", ALL, indirect=True)


@pytest.fixture(scope="module", params=NOTED)
def stores(
    request: pytest.FixtureRequest, session: SparkSession
) -> Iterator[tuple[SparkSession, ServedStore, str]]:
    spark = session.newSession()
    with reached_by(spark, request.param) as (store, bucket):
        yield spark, store, bucket


@pytest.fixture
def place(stores: tuple[SparkSession, ServedStore, str]) -> Iterator[Place]:
    spark, store, bucket = stores
    yield Place(spark, store, bucket, f"tables-{uuid.uuid4().hex}")
    store.before, store.refuses = nothing, nobody


def set_aside(place: Place) -> None:
    """Set a record aside as a process does that has none of the former ones."""
    columns = {"Id": "INT64", "A": "INT64"}
    rows: Any = [({"Id": str(n)}, {"A": a}, {}) for n, a in enumerate(("5", "x", "y"))]
    changes = frame(place.spark, [record("INSERT", rows, columns, at=1)])
    typed = (Column("Id", "INT64", True), Column("A", "INT64", False))
    checked = latest_changes(changes, TABLE, typed, is_checked=True)
    letters = DeadLetters(place.path, is_enabled=True)
    good = letters.set_aside(changes, TABLE, checked, low_watermark(1))
    assert [row["key"] for row in good.collect()] == ['{"Id": "0"}']


def test_a_former_owner_that_wakes_up_takes_no_letters_away(place: Place) -> None:
    is_replayed = False

    def before(_: str, name: str) -> None:
        nonlocal is_replayed
        # The former owner has staged its letters: it looks where they are to stand.
        if f"{FOLDER}/2026" in name:
            place.store.before = nothing
            place.directory().remove_other_staging()
            set_aside(place)
            is_replayed = True

    place.store.before = before
    with suppress(PublishError):
        set_aside(place)
    assert is_replayed
    # As after a crash.
    set_aside(place)
    (letters,) = place.files(FOLDER).values()
    keys = [json.loads(line)["key"] for line in letters.splitlines()]
    assert sorted(keys) == ['{"Id": "1"}', '{"Id": "2"}']
    assert place.files("_staging") == {}


@OF_ALL
def test_letters_that_are_there_are_left_alone(place: Place) -> None:
    first, former, second = (place.directory() for _ in range(3))
    place.stage(former)
    former_file = next(iter(place.files("_staging")))
    place.stage(first)
    first.publish_file(0, LETTERS)
    path = jvm_of(place.spark).org.apache.hadoop.fs.Path
    files: Any = path(place.path).getFileSystem(hadoop_conf(place.spark))
    source, target = path(f"{place.bucket}/{former_file}"), path(f"{place.path}/{LETTERS}")
    # What a process asks for that saw no letters a moment ago: it is refused in one way or another.
    with suppress(java_raised()):
        assert not files.rename(source, target)
    second.remove_other_staging()
    former.publish_file(0, LETTERS)
    place.stage(second)
    second.publish_file(0, LETTERS)
    assert place.files(FOLDER) == {f"{place.folder}/{LETTERS}": CONTENT}
    assert place.files("_staging") == {}
    with pytest.raises(PublishError, match=r"taken the pipeline over"):
        former.publish_file(0, f"{FOLDER}/others/part-00000.json")


@pytest.mark.parametrize("stores", [ALL[-1]], indirect=True)
def test_bad_records_are_set_aside_once(place: Place) -> None:
    for _ in range(2):
        set_aside(place)
    (letters,) = place.files(FOLDER).values()
    assert len(letters.splitlines()) == 2


@pytest.mark.long
@pytest.mark.parametrize("is_killed", [False, True], ids=["frozen", "killed"])
def test_at_no_request_are_letters_lost_or_doubled(place: Place, is_killed: bool) -> None:
    folder = place.folder
    for step in range(REQUESTS_MAX):
        place.folder = f"{folder}-{step}"
        if not interrupted(place, step, is_killed=is_killed):
            break
        assert place.files(FOLDER) == {f"{place.folder}/{LETTERS}": CONTENT}, step
        assert place.files("_staging") == {}, step
    assert 5 < step < REQUESTS_MAX - 1


def interrupted(place: Place, step: int, *, is_killed: bool) -> bool:
    """Publish letters, with a successor that does so, too, before a request is answered.

    Returns:
        Whether there were so many requests.
    """
    former, successor = place.directory(), place.directory()
    place.stage(former)
    requests, is_over = 0, False

    def replay() -> None:
        successor.remove_other_staging()
        place.stage(successor)
        successor.publish_file(0, LETTERS)

    def before(*_: str) -> None:
        nonlocal requests, is_over
        requests += 1
        if requests == step + 1 and not is_over:
            is_over = True
            replay()

    def refuses(*_: str) -> bool:
        nonlocal requests
        requests += 1
        return requests > step

    if is_killed:
        place.store.refuses = refuses
    else:
        place.store.before = before
    # A connector gives its Java exception.
    with suppress(PublishError, java_raised()):
        former.publish_file(0, LETTERS)
    place.store.before, place.store.refuses = nothing, nobody
    if is_killed:
        replay()
        is_over = requests > step
    successor.remove_other_staging()
    return is_over
