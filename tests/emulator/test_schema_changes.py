"""Tables and columns change while a pipeline reads them.

What the emulator can't do, beside what the tests assert:

- After a column or a table was dropped that a stream watched without naming it, the next ALTER
  CHANGE STREAM ... SET FOR ends the emulator's process. So no test here alters a stream after
  such a drop.
- A stream that ever named columns of a table goes on holding the table up, also after DROP FOR
  ALL: the emulator then refuses to drop the table (asserted below).
- It knows no ALTER COLUMN ... SET NOT NULL in PostgreSQL (asserted below).
- It has no records of a table under a name that is new to the stream, until that table is altered.
"""

import pytest
from google.api_core.exceptions import (
    FailedPrecondition,
    GoogleAPICallError,
    InternalServerError,
)

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.watched_tables import watched_tables
from tests.support.changing import Watching, renamed


def test_a_column_added_is_in_later_records_and_not_in_earlier_ones_of_the_same_epoch(
    watching: Watching,
) -> None:
    database = watching("ALL")
    first = database.insert(A="a")
    database.ddl("ALTER TABLE `T` ADD COLUMN `C` STRING(10)")
    database.insert(A="a", C="é")
    database.update(first, C="late")
    before, after, update = database.read()
    assert before.columns == ("Id", "A", "B")
    assert before.new == {"A": "a", "B": None}
    assert after.columns == ("Id", "A", "B", "C")
    assert after.new == {"A": "a", "B": None, "C": "é"}
    assert update.columns == ("Id", "C")
    assert (update.new, update.old) == ({"C": "late"}, {"C": None})


def test_a_column_added_is_not_in_the_records_of_a_stream_that_names_columns(
    watching: Watching,
) -> None:
    database = watching("`T`(`A`)")
    database.ddl("ALTER TABLE `T` ADD COLUMN `C` STRING(10)")
    row = database.insert(A="a", B="b", C="c")
    database.update(row, C="more")
    (insert,) = database.read()
    assert insert.columns == ("Id", "A")
    assert insert.new == {"A": "a"}


def test_a_column_dropped_stays_in_the_records_written_before(watching: Watching) -> None:
    database = watching("ALL")
    database.insert(A="a", B="b")
    database.ddl("ALTER TABLE `T` DROP COLUMN `A`")
    database.insert(B="b")
    before, after = database.read()
    assert (before.columns, before.new) == (("Id", "A", "B"), {"A": "a", "B": "b"})
    assert (after.columns, after.new) == (("Id", "B"), {"B": "b"})


def test_a_column_dropped_and_made_again_with_another_type_changes_its_type_in_place(
    watching: Watching,
) -> None:
    database = watching("ALL")
    database.insert(A="text")
    database.ddl("ALTER TABLE `T` DROP COLUMN `A`")
    database.ddl("ALTER TABLE `T` ADD COLUMN `A` INT64")
    database.insert(A=7)
    before, after = database.read()
    assert (before.types["A"], before.new["A"]) == ("STRING", "text")
    assert (after.types["A"], after.new["A"]) == ("INT64", "7")


def test_a_column_that_a_stream_names_is_dropped_after_the_stream_was_altered(
    watching: Watching,
) -> None:
    database = watching("`T`(`A`, `B`)")
    database.insert(A="a", B="b")
    with pytest.raises(FailedPrecondition, match="Columns explicitly tracked"):
        database.ddl("ALTER TABLE `T` DROP COLUMN `A`")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `T`(`B`)")
    database.ddl("ALTER TABLE `T` DROP COLUMN `A`")
    database.insert(B="b")
    before, after = database.read()
    assert (before.columns, before.new) == (("Id", "A", "B"), {"A": "a", "B": "b"})
    assert (after.columns, after.new) == (("Id", "B"), {"B": "b"})


def test_a_column_made_wider_takes_longer_values_from_then_on(watching: Watching) -> None:
    database = watching("`T`")
    database.insert(A="short")
    to = "TYPE " if database.dialect is Dialect.POSTGRESQL else ""
    database.ddl(f"ALTER TABLE `T` ALTER COLUMN `A` {to}STRING(MAX)")
    database.insert(A="long " * 100)
    before, after = database.read()
    assert (before.new["A"], after.new["A"]) == ("short", "long " * 100)
    # The length is no part of a record's column type.
    assert before.types == after.types


def test_a_column_made_not_null_goes_on_in_the_records(watching: Watching) -> None:
    database = watching("ALL")
    database.insert(A="a", B="b")
    if database.dialect is Dialect.POSTGRESQL:
        with pytest.raises(InternalServerError, match="SET_DEFAULT"):
            database.ddl("ALTER TABLE `T` ALTER COLUMN `A` SET NOT NULL")
    else:
        database.ddl("ALTER TABLE `T` ALTER COLUMN `A` STRING(10) NOT NULL")
    database.insert(A="a", B="b")
    before, after = database.read()
    assert (before.columns, before.types, before.new) == (after.columns, after.types, after.new)


@pytest.mark.parametrize(("watched", "tables"), [("ALL", ["T", "V", "T"]), ("`T`", ["T", "T"])])
def test_a_table_created_is_seen_at_once_by_a_stream_for_all_and_not_by_one_that_names_tables(
    watched: str, tables: list[str], watching: Watching
) -> None:
    database = watching(watched)
    database.insert("T", A="a")
    database.create_table("`V`")
    database.insert("V", A="a")
    database.insert("T", A="a")
    assert [change.table for change in database.read()] == tables


def test_records_written_before_their_table_was_dropped_still_come(watching: Watching) -> None:
    database = watching("ALL")
    database.insert("U", A="a")
    database.ddl("DROP TABLE `U`")
    database.insert("T", A="b")
    gone, left = database.read()
    assert (gone.table, gone.new) == ("U", {"A": "a", "B": None})
    assert (left.table, left.new) == ("T", {"A": "b", "B": None})


def test_a_table_that_a_stream_names_is_dropped_after_the_stream_was_altered(
    watching: Watching,
) -> None:
    database = watching("`T`, `U`")
    database.insert("U", A="a")
    with pytest.raises(FailedPrecondition, match="Tables explicitly tracked"):
        database.ddl("DROP TABLE `U`")
    database.ddl("ALTER CHANGE STREAM `S` SET FOR `T`")
    database.ddl("DROP TABLE `U`")
    database.insert("T", A="b")
    assert [(change.table, change.new["A"]) for change in database.read()] == [
        ("U", "a"),
        ("T", "b"),
    ]


def test_the_emulator_holds_up_a_table_whose_columns_a_stream_named_once(
    watching: Watching,
) -> None:
    """Spanner's documents name no such rule: this is to fail the day the emulator does without."""
    database = watching("`T`(`A`)")
    database.ddl("ALTER CHANGE STREAM `S` DROP FOR ALL")
    with pytest.raises(FailedPrecondition, match="Tables explicitly tracked"):
        database.ddl("DROP TABLE `T`")


def test_a_table_dropped_and_made_again_differently_under_its_name_goes_on(
    watching: Watching,
) -> None:
    database = watching("ALL")
    database.insert(A="a")
    database.ddl("DROP TABLE `T`")
    database.create_table("`T`", "`Z` INT64")
    database.insert(Z=1)
    before, after = database.read()
    assert (before.table, before.columns) == ("T", ("Id", "A", "B"))
    assert (after.table, after.columns, after.new) == ("T", ("Id", "Z"), {"Z": "1"})


@pytest.mark.parametrize("watched", ["ALL", "`T`, `U`"])
def test_records_have_the_name_that_their_table_had_when_they_were_committed(
    watched: str, watching: Watching
) -> None:
    """The stream goes on with its tables, whatever their names are."""
    database = watching(watched)
    database.insert("T", A="former T")
    database.insert("U", A="former U")
    # At one time, as Spanner does it by one statement that the emulator does not know.
    database.ddl(*renamed("T X", "U T", "X U"))
    database.insert("T", A="former U")
    database.insert("U", A="former T")
    database.ddl(*renamed("T V"), "ALTER TABLE `V` ADD COLUMN `C` INT64")
    database.insert("V", A="former U")
    records = [(change.table, change.new["A"]) for change in database.read()]
    assert records == [
        ("T", "former T"),
        ("U", "former U"),
        ("T", "former U"),
        ("U", "former T"),
        ("V", "former U"),
    ]


def test_a_table_that_keeps_its_former_name_as_a_synonym_comes_under_the_new_one(
    watching: Watching,
) -> None:
    database = watching("ALL")
    # The emulator knows ALTER TABLE ... RENAME WITH SYNONYM in neither dialect.
    database.ddl(*renamed("T V"), "ALTER TABLE `V` ADD SYNONYM `T`")
    database.insert("T", A="a")
    database.insert("V", A="b")
    assert [change.table for change in database.read()] == ["V", "V"]
    tables = watched_tables(database.clock, database.dialect)
    assert {table.name for table in tables} == {"U", "V"}


def test_no_dialect_renames_columns(watching: Watching) -> None:
    """So columns can't exchange their names: one is dropped, and another one made."""
    database = watching("ALL")
    with pytest.raises(GoogleAPICallError):
        database.ddl("ALTER TABLE `T` RENAME COLUMN `A` TO `C`")


def test_a_table_of_a_named_schema_comes_under_its_full_name(watching: Watching) -> None:
    database = watching("ALL")
    database.ddl("CREATE SCHEMA `sales`")
    database.create_table("`sales`.`T`")
    database.insert("sales.T", A="a")
    database.insert("T", A="a")
    assert [change.table for change in database.read()] == ["sales.T", "T"]


def test_reserved_names_and_quoted_and_non_ascii_values_come_as_they_were_written(
    watching: Watching,
) -> None:
    database = watching("ALL")
    columns = "`Select` STRING(MAX), `order_by` STRING(MAX)"
    database.create_table("`Table`", columns)
    value = "\"quoted\" 'single' `back` \\ \n\t 日本語 é 🐟 \u2028 \x00end"
    if database.dialect is Dialect.POSTGRESQL:
        # A character that PostgreSQL's texts can't hold.
        value = value.replace("\x00", "")
    database.insert("Table", Select=value, order_by="")
    (change,) = database.read()
    assert change.table == "Table"
    assert change.new == {"Select": value, "order_by": ""}


def test_two_hundred_columns_come_whole_and_in_order(watching: Watching) -> None:
    database = watching("ALL")
    names = [f"C{i:03}" for i in range(200)]
    columns = ", ".join(f"`{name}` STRING(MAX)" for name in names)
    database.create_table("`Wide`", columns)
    values = {name: f"{name} é" for name in names}
    row = database.insert("Wide", **values)
    database.update(row, "Wide", C199="new")
    insert, update = database.read()
    assert insert.columns == ("Id", *names)
    assert insert.new == values
    assert (update.columns, update.old) == (("Id", "C199"), {"C199": "C199 é"})


def test_generated_columns_are_in_no_record_and_not_watched_unless_they_are_keys(
    watching: Watching,
) -> None:
    database = watching("ALL")
    word = "GENERATED ALWAYS AS" if database.dialect is Dialect.POSTGRESQL else "AS"
    database.ddl(
        f"ALTER TABLE `T` ADD COLUMN `L` INT64 {word} (LENGTH(`A`)) STORED",
        spell_key(database.dialect, word),
    )
    row = database.insert(A="abc")
    database.update(row, A="abcd")
    database.insert("K", A="a")
    insert, update, with_key = database.read()
    assert (insert.columns, update.columns) == (("Id", "A", "B"), ("Id", "A"))
    assert with_key.keys == {"G": "3"}
    by_name = {t.name: t for t in watched_tables(database.clock, database.dialect)}
    assert (list(by_name["T"].columns), by_name["T"].generated) == (["Id", "A", "B"], ("L",))
    assert (list(by_name["K"].columns), by_name["K"].key) == (["Id", "G", "A"], ("G",))
    assert by_name["K"].generated == ()


def spell_key(dialect: Dialect, word: str) -> str:
    """Return the CREATE TABLE of `K`, whose key is a generated column."""
    columns = f"`Id` INT64 NOT NULL, `G` INT64 {word} (`Id` + 1) STORED, `A` STRING(10)"
    if dialect is Dialect.POSTGRESQL:
        return f"CREATE TABLE `K` ({columns}, PRIMARY KEY (`G`))"
    return f"CREATE TABLE `K` ({columns}) PRIMARY KEY (`G`)"
