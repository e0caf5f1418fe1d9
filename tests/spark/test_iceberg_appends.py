"""Appends to Iceberg tables: of an epoch's owners one lands it, wherever another was frozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriterV2

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.tables import iceberg_appends, iceberg_commits
from slackwater.spark_sink.tables.iceberg import Iceberg
from tests.mirrors import iceberg_table

OWN = "slackwater orders"
# Before Spark writes the files, before they become a snapshot, and before that becomes current.
STEPS = pytest.mark.parametrize(
    ("owner", "name"),
    [(DataFrameWriterV2, "append"), (iceberg_appends, "_summary"), (iceberg_appends, "commit")],
    ids=["write", "snapshot", "commit"],
)


def before(patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], None]) -> None:
    """Do something once, before a function is called."""
    function, is_done = getattr(owner, name), False

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            action()
        return function(*args, **kwargs)

    patch.setattr(owner, name, called)


def append(spark: SparkSession, path: str, version: int, application: str = OWN) -> None:
    """Append a version's rows by a process that knows nothing of other appends."""
    rows = spark.range(version * 10, version * 10 + 3)
    Iceberg().append(rows, path, application, version)


def versions(spark: SparkSession, path: str) -> list[int]:
    """Return the versions whose rows are there, as a session sees them that is new."""
    other = spark.newSession()
    table = other.table(Iceberg().name(other, path))
    ids = sorted(row[0] for row in table.select("id").collect())
    assert ids == [number + place for number in ids[::3] for place in range(3)]
    return [number // 10 for number in ids[::3]]


@STEPS
def test_a_former_owner_appends_nothing_after_its_successor(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    path = str(tmp_path / "changes")
    append(session, path, 1)

    def successor() -> None:
        append(session.newSession(), path, 2)
        append(session.newSession(), path, 3)

    before(monkeypatch, owner, name, successor)
    append(session, path, 2)
    assert versions(session, path) == [1, 2, 3]
    assert Iceberg().last_version(session, path, OWN) == 3
    append(session, path, 4)
    assert versions(session, path) == [1, 2, 3, 4]


@STEPS
def test_a_former_owner_appends_no_chunk_whose_snapshot_is_expired(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Of a pipeline's snapshots the last one stays that has an epoch; chunks have another name."""
    path, scan = str(tmp_path / "changes"), f"{OWN} scan 1"
    append(session, path, 0, scan)

    def successor() -> None:
        other = session.newSession()
        append(other, path, 1, scan)
        for version in (2, 3):
            append(other, path, version)
            Iceberg().maintain(other, path, OWN, 0.0)
        assert Iceberg().last_version(other, path, scan) is None

    before(monkeypatch, owner, name, successor)
    with pytest.raises(PublishError, match="at the same time"):
        append(session, path, 1, scan)
    assert versions(session, path) == [0, 1, 2, 3]
    append(session, path, 4)
    assert versions(session, path) == [0, 1, 2, 3, 4]


@STEPS
def test_an_append_goes_on_after_others_commits(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    path = str(tmp_path / "changes")
    for version in range(1, 6):
        append(session, path, version)

    def others() -> None:
        other = session.newSession()
        table = Iceberg().name(other, path)
        other.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('color' = 'blue')")
        Iceberg().maintain(other, path, "slackwater other", 0.0)
        append(other, path, 9, "slackwater other")

    before(monkeypatch, owner, name, others)
    append(session, path, 6)
    assert versions(session, path) == [1, 2, 3, 4, 5, 6, 9]
    assert iceberg_table(Path(path)).properties["color"] == "blue"
    own = [Iceberg().last_version(session, path, name) for name in (OWN, "slackwater other")]
    assert own == [6, 9]


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_whose_answer_is_lost_lands_once(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    path, commit = str(tmp_path / "changes"), iceberg_commits.commit
    append(session, path, 1)

    def lost(*args: Any) -> bool:
        if is_made:
            commit(*args)
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(iceberg_appends, "commit", lost)
        with pytest.raises(ConnectionError):
            append(session, path, 2)
    assert versions(session, path) == ([1, 2] if is_made else [1])
    # A catalog may also say of the commit that it made that another one was first.
    monkeypatch.setattr(iceberg_appends, "commit", lambda *args: commit(*args) and False)
    append(session, path, 2)
    append(session, path, 3)
    assert versions(session, path) == [1, 2, 3]


def test_an_epoch_without_rows_is_there_too(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "changes")
    append(session, path, 1)
    Iceberg().append(session.range(0), path, OWN, 2)
    assert versions(session, path) == [1]
    assert Iceberg().last_version(session, path, OWN) == 2


def test_an_append_gives_up_where_others_commit_each_time(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "changes")
    append(session, path, 1)
    monkeypatch.setattr(iceberg_appends, "commit", lambda *_: False)
    with pytest.raises(PublishError, match="another process committed"):
        append(session, path, 2)
    assert versions(session, path) == [1]


@pytest.mark.parametrize("has_rows", [True, False])
def test_of_two_creators_of_a_table_the_second_fails(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_rows: bool
) -> None:
    path = str(tmp_path / "changes")

    def other() -> None:
        spark = session.newSession()
        if has_rows:
            append(spark, path, 1)
        else:
            spark.sql(f"CREATE TABLE {Iceberg().name(spark, path)} (id BIGINT) USING iceberg")

    before(monkeypatch, DataFrameWriterV2, "create", other)
    with pytest.raises(PublishError, match="another process committed"):
        append(session, path, 1)
    for version in (1, 2):
        append(session, path, version)
    assert versions(session, path) == [1, 2]


@pytest.mark.parametrize(
    ("version", "properties"),
    [
        (1, "'write.wap.enabled' = 'true'"),
        (2, "'write.spark.accept-any-schema' = 'true'"),
        (3, "'write.format.default' = 'avro'"),
    ],
)
def test_a_table_that_its_user_made_is_appended_to(
    session: SparkSession, tmp_path: Path, version: int, properties: str
) -> None:
    path, spark = str(tmp_path / "changes"), session.newSession()
    spark.conf.set("spark.sql.iceberg.snapshot-property.team", "sea")
    table = Iceberg().name(spark, path)
    spark.sql(
        f"CREATE TABLE {table} (note STRING, ID BIGINT) USING iceberg"
        f" PARTITIONED BY (bucket(2, ID))"
        f" TBLPROPERTIES ('format-version' = {version}, {properties})"
    )
    for epoch in (1, 2, 2):
        append(spark, path, epoch)
    assert versions(spark, path) == [1, 2]
    assert spark.table(table).where("note IS NULL").count() == 6
    if version == 3:
        numbers = {row[0] for row in spark.sql(f"SELECT _row_id FROM {table}").collect()}
        assert numbers == set(range(6))
    newest = spark.table(f"{table}.snapshots").orderBy("committed_at", ascending=False).first()
    assert newest is not None
    assert (newest["operation"], newest["summary"]["team"]) == ("append", "sea")
    assert newest["summary"]["total-records"] == "6"
    assert newest["summary"]["spark.app.id"] == spark.sparkContext.applicationId
