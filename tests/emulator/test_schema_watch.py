"""What is seen of tables and columns made again, and of a stream that leaves changes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from slackwater.commands.check import checks
from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.pipeline.epochs.schema_watch import SchemaWatch
from slackwater.pipeline.source import check_omissions, connect
from slackwater.reader.errors import ReaderError, UnsupportedStreamError
from slackwater.spark_sink.sink import Former
from slackwater.timestamp import datetime_to_us, ns_to_us, seconds_to_ns
from tests.changing import ChangingDatabase, Watching
from tests.faults.proxy import FaultProxy
from tests.faults.schema_rules import Options, Versions
from tests.services import settings

OMITTING = ("exclude_insert", "exclude_ttl_deletes", "allow_txn_exclusion")


class Told:
    """A sink that notes what it is to forget."""

    def __init__(self) -> None:
        self.former = Former()

    def forget_former(self, former: Former) -> None:
        self.former = former


def settings_of(database: ChangingDatabase, folder: Path, kind: str) -> Settings:
    made = settings(database.stream, folder, "now")
    made["sink"] |= {"kind": kind, "format": "delta"}
    (folder / "slackwater.yaml").write_text(yaml.safe_dump(made))
    return load_settings(folder / "slackwater.yaml", environ={})


def test_tables_and_columns_made_again_are_told_with_a_time_at_which_they_were_absent(
    watching: Watching, tmp_path: Path
) -> None:
    database = watching("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    watch = SchemaWatch(source, told)
    now = database.clock.strong_read_timestamp_ns
    start_ns = now()
    watch.look(start_ns, start_ns)
    database.ddl("DROP TABLE `T`", "ALTER TABLE `U` DROP COLUMN `A`")
    gone_ns = now()
    watch.look(start_ns, gone_ns)
    assert told.former == Former()
    database.create_table("`T`")
    database.ddl("ALTER TABLE `U` ADD COLUMN `A` STRING(10)")
    again_ns = now()
    # The second one is of a process that has just been started.
    for looking in (watch, SchemaWatch(source, told)):
        looking.look(gone_ns, again_ns)
        times = {table: datetime_to_us(at) for table, at in told.former.tables.items()}
        assert times == {"T": ns_to_us(gone_ns)}
        assert list(told.former.columns) == [("U", "A")]
        assert told.former.is_complete
    watch.look(again_ns, now())
    assert told.former == Former()
    source.connection.close()


def test_a_stream_that_names_its_tables_may_lack_changes_of_a_table_made_again(
    watching: Watching, tmp_path: Path
) -> None:
    database = watching("`U`")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    start_ns = database.clock.strong_read_timestamp_ns()
    database.create_table("`V`")
    SchemaWatch(source, told).look(start_ns, database.clock.strong_read_timestamp_ns())
    assert (list(told.former.tables), told.former.is_complete) == (["V"], False)
    source.connection.close()


def test_a_schema_that_spanner_keeps_no_more_is_warned_of_once(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = watching("ALL")
    now_ns = database.clock.strong_read_timestamp_ns()
    with FaultProxy(str(database.stream.emulator_host), [Versions(now_ns)]) as proxy:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", proxy.host)
        told = Told()
        source = connect(settings_of(database, tmp_path, "mirror"))
        watch = SchemaWatch(source, told)
        with capture_logs() as logs:
            for _ in range(2):
                watch.look(now_ns - seconds_to_ns(7_200), now_ns - seconds_to_ns(3_700))
        assert [log["event"] for log in logs] == [
            "can't see whether tables or columns were dropped and created again"
        ]
        assert told.former == Former()
        source.connection.close()


def test_a_table_that_a_role_may_not_read_for_a_while_is_not_taken_for_another_one(
    watching: Watching, tmp_path: Path
) -> None:
    """The emulator has no roles: what a role does not see is dropped here."""
    database = watching("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    stream = replace(source.options.change_stream, database_role="reader")
    source = replace(source, options=replace(source.options, change_stream=stream))
    now = database.clock.strong_read_timestamp_ns
    database.ddl("DROP TABLE `T`")
    gone_ns = now()
    database.create_table("`T`")
    with capture_logs() as logs:
        SchemaWatch(source, told).look(gone_ns, now())
    assert told.former == Former()
    assert [log["log_level"] for log in logs] == ["warning"]
    source.connection.close()


def test_a_stream_that_leaves_changes_out_is_refused_for_mirrors_and_warned_of_elsewhere(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator leaves the changes out, too, but does not show the options."""
    database = watching("ALL")
    with FaultProxy(str(database.stream.emulator_host)) as proxy:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", proxy.host)
        mirror = settings_of(database, tmp_path, "mirror")
        changelog = settings_of(database, tmp_path, "changelog")
        source = connect(mirror)
        check_omissions(mirror, source)
        watch = SchemaWatch(source, Told())
        now = database.clock.strong_read_timestamp_ns
        watch.look(now(), now())
        proxy.rules.append(Options("S", OMITTING))
        # While the pipeline runs, before the next epoch changes the mirrors.
        with pytest.raises(UnsupportedStreamError, match="exclude_ttl_deletes") as caught:
            watch.look(now(), now())
        assert "Changes since then may be missing" in caught.value.hint
        with pytest.raises(UnsupportedStreamError, match="allow_txn_exclusion = true"):
            check_omissions(mirror, connect(mirror))
        (problem,) = [check.problem for check in checks(mirror) if check.name == "change stream"]
        assert isinstance(problem, ReaderError)
        assert problem.user_error
        with capture_logs() as logs:
            check_omissions(changelog, connect(changelog))
        assert logs[0]["options"] == list(OMITTING)
        (detail,) = [check.detail for check in checks(changelog) if check.name == "change stream"]
        assert detail.endswith("leaves changes out: " + ", ".join(OMITTING))
