"""A typed changelog in PostgreSQL with partitions, of which old ones go."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog
from slackwater.spark_sink.tables.table_changes import AppendId
from tests.support.epoch_rows import low_watermark
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server

PIPELINE = "slackwater orders"
SCHEMA = pa.schema(
    {"commit_timestamp": pa.timestamp("us", "UTC"), "key": pa.struct({"Id": pa.int64()})}
)
PROPERTIES = {
    "slackwater.table": "archive.Notes",
    "partition_by": "DAY",
    "partition_expiration_days": "2",
}


class Changelog:
    """A changelog in a schema, and the days of its rows."""

    def __init__(self, log: PostgresqlLog) -> None:
        self.log = log
        self._epoch = 0
        self.access = PostgresqlAccess(log, TableAddress("archive", "Notes"))
        self.access.make(SCHEMA, PROPERTIES, [])

    def add(self, *days: int, fails: bool = False) -> None:
        """Append a row for each day of November, in one epoch that may fail in the end."""
        times = [datetime(2026, 11, day, 12, tzinfo=UTC) for day in days]
        rows = [{"commit_timestamp": at, "key": {"Id": at.day}} for at in times]
        at = low_watermark(self._epoch + 1)
        with self.log.committing(at, None, is_stated=False, incomplete=[]):
            append_id = AppendId(PIPELINE, self._epoch, at)
            self.access.append_rows(pa.Table.from_pylist(rows, SCHEMA), append_id)
            if fails:
                raise PublishError("the connection is lost")
        self._epoch += 1

    def rows(self) -> list[int]:
        rows = self.log.reader.run('SELECT "key.Id" FROM archive."Notes" ORDER BY 1')
        return [day for (day,) in rows]

    def partitions(self) -> Sequence[str]:
        names = self.log.reader.run(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'Notes %' ORDER BY 1"
        )
        return [name.removeprefix("Notes 2026-11-") for (name,) in names]


@pytest.fixture
def changelog(new_postgres_url: Callable[[], str], tmp_path: Path) -> Iterator[Changelog]:
    url = new_postgres_url().replace("+psycopg", "")
    log = PostgresqlLog(url, Disk(tmp_path, str(tmp_path)), PIPELINE)
    with closing(log.database), closing(log.reader):
        log.take_over(lambda: None)
        yield Changelog(log)


def test_rows_are_in_the_partition_of_their_day_and_old_days_go(changelog: Changelog) -> None:
    changelog.add(1, 1, 2)
    changelog.add(2, 3)
    assert changelog.partitions() == ["01", "02", "03"]
    assert changelog.rows() == [1, 1, 2, 2, 3]
    of_a_day = changelog.log.reader.run('SELECT "key.Id" FROM archive."Notes 2026-11-02"')
    assert of_a_day == [(2,), (2,)]
    changelog.add(4)
    assert changelog.partitions() == ["02", "03", "04"]
    # Late, or of a rescan.
    changelog.add(1, 9)
    assert changelog.partitions() == ["01", "09"]
    assert changelog.rows() == [1, 9]
    changelog.add(10)
    assert changelog.partitions() == ["09", "10"]
    assert [dict(of) for of in changelog.log.own_properties()] == [
        {"slackwater.pipeline": PIPELINE, **PROPERTIES}
    ]


def test_an_epoch_that_fails_leaves_no_partition_and_comes_again(changelog: Changelog) -> None:
    with pytest.raises(PublishError):
        changelog.add(1, fails=True)
    assert changelog.partitions() == []
    changelog.add(1)
    assert changelog.rows() == [1]


def test_readers_do_not_hold_an_epoch_up_and_the_old_day_goes_later(changelog: Changelog) -> None:
    changelog.add(1)
    with changelog.log.reader.snapshot():
        assert changelog.rows() == [1]
        changelog.add(9)
        assert changelog.rows() == [1]
    assert changelog.partitions() == ["01", "09"]
    changelog.add(10)
    assert changelog.partitions() == ["09", "10"]
    assert changelog.rows() == [9, 10]
