"""What is seen of tables and columns made again, and of a stream that leaves changes out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from grpc import StatusCode
from structlog.testing import capture_logs

from slackwater.commands.check import checks
from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.pipeline.epochs import schema_watch
from slackwater.pipeline.epochs.schema_watch import SchemaWatch
from slackwater.pipeline.source import SourceHandle, check_omissions, connect
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.schema_changes import SchemaChange, schema_changes
from slackwater.reader.errors import ReaderError, UnavailableError, UnsupportedStreamError
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.state.models import Plan
from slackwater.timestamp import datetime_to_us, ns_to_us, seconds_to_ns
from tests.faults.proxy import FaultProxy, Refuses
from tests.faults.schema_rules import Options, Versions
from tests.support.changing import ChangingDatabase, Watching, renamed, table
from tests.support.services import settings

UNLISTED = Refuses(StatusCode.PERMISSION_DENIED, "/google.longrunning.Operations/ListOperations")
# Stands for the CREATE TABLE in the database's dialect.
TABLE = "CREATE TABLE `T`"
OMITTING = ("exclude_insert", "exclude_ttl_deletes", "allow_txn_exclusion")


class Told:
    """A sink that notes what it is to forget, and what is to be read."""

    def __init__(self) -> None:
        self.recreated = RecreatedTables()
        self.others: Mapping[str, int] = {}
        self.is_unchanged = False

    def drop_recreated(self, recreated: RecreatedTables) -> None:
        self.recreated = recreated

    def watch(self, source: SourceHandle) -> SchemaWatch:
        return SchemaWatch(source, self, self.note_schema)

    def note_schema(self, reassigned: Mapping[str, int], *, is_unchanged: bool) -> None:
        self.others, self.is_unchanged = reassigned, is_unchanged


def cut(start_ns: int, end_ns: int) -> Plan:
    return Plan("plan", "pipeline", start_ns, end_ns)


def spell_table(database: ChangingDatabase, statement: str) -> str:
    return table(database.dialect, statement.split()[-1])


def settings_of(database: ChangingDatabase, folder: Path, kind: str) -> Settings:
    made = settings(database.stream, folder, "now")
    made["sink"] |= {"kind": kind, "format": "delta"}
    (folder / "slackwater.yaml").write_text(yaml.safe_dump(made))
    return load_settings(folder / "slackwater.yaml", environ={})


@pytest.fixture
def unlisted(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], tuple[ChangingDatabase, FaultProxy]]]:
    """Make databases whose DDL statements the credentials may not list, behind a proxy."""
    with ExitStack() as stack:

        def made(watched: str) -> tuple[ChangingDatabase, FaultProxy]:
            database = watching(watched)
            proxy = FaultProxy(database.stream.endpoint.target, [UNLISTED])
            monkeypatch.setenv("SPANNER_EMULATOR_HOST", stack.enter_context(proxy).host)
            return database, proxy

        yield made


def require_made_again(database: ChangingDatabase, source: SourceHandle) -> None:
    """Make a table and a column again, each between two epochs."""
    told = Told()
    watch = told.watch(source)
    now = database.clock.strong_read_timestamp_ns
    start_ns = now()
    watch.inspect(cut(start_ns, start_ns))
    database.ddl("DROP TABLE `T`", "ALTER TABLE `U` DROP COLUMN `A`")
    gone_ns = now()
    watch.inspect(cut(start_ns, gone_ns))
    assert told.recreated == RecreatedTables()
    database.create_table("`T`")
    database.ddl("ALTER TABLE `U` ADD COLUMN `A` STRING(10)")
    again_ns = now()
    # The second one is of a process that has just been started.
    for looking in (watch, told.watch(source)):
        looking.inspect(cut(gone_ns, again_ns))
        times = {table: datetime_to_us(at) for table, at in told.recreated.tables.items()}
        assert times == {"T": ns_to_us(gone_ns)}
        assert list(told.recreated.columns) == [("U", "A")]
        assert told.others == {"T": gone_ns}
    watch.inspect(cut(again_ns, now()))
    assert told.recreated == RecreatedTables()
    source.connection.close()


def test_tables_and_columns_made_again_are_told_with_a_time_at_which_they_were_absent(
    watching: Watching, tmp_path: Path
) -> None:
    database = watching("ALL")
    require_made_again(database, connect(settings_of(database, tmp_path, "mirror")))


def test_tables_and_columns_made_again_are_seen_without_the_right_to_list_ddl_statements(
    unlisted: Callable[[str], tuple[ChangingDatabase, FaultProxy]], tmp_path: Path
) -> None:
    database, _ = unlisted("ALL")
    with capture_logs() as logs:
        require_made_again(database, connect(settings_of(database, tmp_path, "mirror")))
    assert [log["reason"] for log in logs] == [
        "the credentials lack spanner.databaseOperations.list"
    ] * 2


@pytest.mark.parametrize(
    ("statements", "others"),
    [
        pytest.param(renamed("T X", "U T", "X U"), {"T", "U"}, id="exchanged"),
        pytest.param(renamed("T X"), {"X"}, id="another name"),
        pytest.param(renamed("T X", "X T"), {"T"}, id="there and back"),
        pytest.param(["DROP TABLE `T`", *renamed("U T")], {"T"}, id="taken over"),
        pytest.param([*renamed("T X"), TABLE], {"T", "X"}, id="made anew beside it"),
        pytest.param(["DROP TABLE `T`", TABLE], {"T"}, id="dropped and made at once"),
    ],
)
def test_a_name_that_belongs_to_another_table_is_told_with_the_time(
    statements: list[str], others: set[str], watching: Watching, tmp_path: Path
) -> None:
    """The emulator carries the statements of a request out at one time."""
    database = watching("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    watch = told.watch(source)
    now = database.clock.strong_read_timestamp_ns
    start_ns = now()
    database.ddl(*(spell_table(database, one) if one == TABLE else one for one in statements))
    end_ns = now()
    later_ns = now()
    # One epoch, two, and one of a process that has just been started.
    for looking in (watch, told.watch(source)):
        looking.inspect(cut(start_ns, end_ns))
        assert told.others.keys() == told.recreated.tables.keys() == others
        assert all(start_ns < at_ns <= end_ns for at_ns in told.others.values())
        assert not told.recreated.columns
    watch.inspect(cut(end_ns, later_ns))
    assert told.recreated == RecreatedTables()
    source.connection.close()


def test_the_schema_is_read_again_unless_it_is_that_of_the_epoch_published_before(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = watching("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    watch = told.watch(source)
    coming: list[SchemaChange] = []
    read = Mock(wraps=read_change_stream_info)
    monkeypatch.setattr(schema_watch, "read_change_stream_info", read)
    monkeypatch.setattr(
        schema_watch, "schema_changes", lambda of: [*(schema_changes(of) or ()), *coming]
    )
    now = database.clock.strong_read_timestamp_ns

    def is_read(start_ns: int, end_ns: int) -> bool:
        read.reset_mock()
        watch.inspect(cut(start_ns, end_ns))
        assert told.is_unchanged != read.called
        return read.called

    first_ns, second_ns = now(), now()
    assert is_read(first_ns, first_ns)
    # Nothing was published so far, or something else.
    assert is_read(first_ns, second_ns)
    watch.published(first_ns - 1)
    assert is_read(first_ns, second_ns)
    watch.published(first_ns)
    assert not is_read(first_ns, second_ns)
    database.ddl("ALTER TABLE `T` ADD COLUMN `New` STRING(10)")
    third_ns = now()
    watch.published(second_ns)
    # A replay, too.
    assert is_read(second_ns, third_ns)
    assert is_read(second_ns, third_ns)
    watch.published(third_ns)
    assert not is_read(third_ns, now())
    coming.append(SchemaChange("CREATE TABLE X", None))
    assert is_read(third_ns, now())
    source.connection.close()


def test_a_column_dropped_and_made_at_once_is_another_one(
    watching: Watching, tmp_path: Path
) -> None:
    database = watching("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    start_ns = database.clock.strong_read_timestamp_ns()
    database.ddl("ALTER TABLE `T` DROP COLUMN `A`", "ALTER TABLE `T` ADD COLUMN `A` STRING(10)")
    told.watch(source).inspect(cut(start_ns, database.clock.strong_read_timestamp_ns()))
    assert list(told.recreated.columns) == [("T", "A")]
    assert not told.recreated.tables
    source.connection.close()


def test_an_epoch_waits_for_a_change_that_is_about_to_rename_tables(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator carries every change out at once."""
    database = watching("ALL")
    coming = SchemaChange("ALTER TABLE T RENAME TO X", None)
    answers = [[coming], [coming], [replace(coming, at_ns=5_000)]]
    monkeypatch.setattr(schema_watch, "schema_changes", lambda _: answers.pop(0))
    monkeypatch.setattr(schema_watch, "_WAIT_S", 0.0)
    source = connect(settings_of(database, tmp_path, "mirror"))
    now_ns = database.clock.strong_read_timestamp_ns()
    Told().watch(source).inspect(cut(now_ns, now_ns))
    assert not answers
    answers += [[coming]] * 2
    monkeypatch.setattr(schema_watch, "_WAIT_S_MAX", -1.0)
    with pytest.raises(UnavailableError, match="ALTER TABLE T RENAME TO X"):
        Told().watch(source).inspect(cut(now_ns, now_ns))
    source.connection.close()


def test_a_schema_that_spanner_keeps_no_more_is_warned_of_once(
    unlisted: Callable[[str], tuple[ChangingDatabase, FaultProxy]], tmp_path: Path
) -> None:
    database, proxy = unlisted("ALL")
    now_ns = database.clock.strong_read_timestamp_ns()
    proxy.rules.append(Versions(now_ns))
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    watch = told.watch(source)
    with capture_logs() as logs:
        for _ in range(2):
            watch.inspect(cut(now_ns - seconds_to_ns(7_200), now_ns - seconds_to_ns(3_700)))
    assert [log["event"].partition(",")[0] for log in logs] == [
        "can't see whether tables or columns were dropped and created again"
    ]
    assert told.recreated == RecreatedTables()
    source.connection.close()


def test_a_pipeline_far_behind_sees_what_spanner_keeps_no_versions_of(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = watching("ALL")
    now = database.clock.strong_read_timestamp_ns
    start_ns = now()
    database.ddl(*renamed("T X", "U T", "X U"))
    end_ns = now()
    monkeypatch.setattr(schema_watch, "VERSIONS_KEPT_NS", 0)
    with FaultProxy(database.stream.endpoint.target, [Versions(now())]) as proxy:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", proxy.host)
        told = Told()
        source = connect(settings_of(database, tmp_path, "mirror"))
        told.watch(source).inspect(cut(start_ns, end_ns))
        assert told.others.keys() == {"T", "U"}
        source.connection.close()


def test_a_table_that_a_role_may_not_read_for_a_while_is_not_taken_for_another_one(
    unlisted: Callable[[str], tuple[ChangingDatabase, FaultProxy]], tmp_path: Path
) -> None:
    """The emulator has no roles: what a role does not see is dropped here."""
    database, proxy = unlisted("ALL")
    told = Told()
    source = connect(settings_of(database, tmp_path, "mirror"))
    stream = replace(source.options.change_stream, database_role="reader")
    source = replace(source, options=replace(source.options, change_stream=stream))
    now = database.clock.strong_read_timestamp_ns
    start_ns = now()
    database.ddl("DROP TABLE `T`")
    gone_ns = now()
    database.create_table("`T`")
    with capture_logs() as logs:
        told.watch(source).inspect(cut(gone_ns, now()))
    assert told.recreated == RecreatedTables()
    assert [log["log_level"] for log in logs] == ["warning"]
    # The statements say what the role's information schema does not.
    proxy.rules.clear()
    told.watch(source).inspect(cut(gone_ns, now()))
    assert told.recreated == RecreatedTables()
    told.watch(source).inspect(cut(start_ns, now()))
    assert list(told.recreated.tables) == ["T"]
    source.connection.close()


def test_check_says_whether_tables_that_exchange_names_are_seen(
    unlisted: Callable[[str], tuple[ChangingDatabase, FaultProxy]], tmp_path: Path
) -> None:
    database, proxy = unlisted("ALL")

    def said(kind: str) -> list[str]:
        made = checks(settings_of(database, tmp_path, kind))
        return [one.detail for one in made if one.name == "schema changes"]

    assert said("mirror") == [
        "tables that exchange names are not seen: the credentials lack"
        " spanner.databaseOperations.list"
    ]
    proxy.rules.clear()
    assert said("mirror") == ["DDL statements can be listed"]
    assert said("changelog") == []


def test_a_stream_that_leaves_changes_out_is_refused_for_mirrors_and_warned_of_elsewhere(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator leaves the changes out, too, but does not show the options."""
    database = watching("ALL")
    with FaultProxy(database.stream.endpoint.target) as proxy:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", proxy.host)
        mirror = settings_of(database, tmp_path, "mirror")
        changelog = settings_of(database, tmp_path, "changelog")
        source = connect(mirror)
        check_omissions(mirror, source)
        watch = Told().watch(source)
        now = database.clock.strong_read_timestamp_ns
        watch.inspect(cut(now(), now()))
        proxy.rules.append(Options("S", OMITTING))
        # While the pipeline runs, before the next epoch changes the mirrors.
        with pytest.raises(UnsupportedStreamError, match="exclude_ttl_deletes") as caught:
            watch.inspect(cut(now(), now()))
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
