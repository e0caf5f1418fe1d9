"""What DDL statements say of names that belong to other tables and columns afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.database.schema_changes import (
    SchemaChange,
    changes_of,
    is_unchanged,
    reassigned_tables,
    recreated_columns,
)
from slackwater.reader.transport.ddl_updates import DdlUpdate

SECOND = 10**9
TABLES = ("a", "B", "sales.Orders", "other", "my table", 'q"t', "n`t", "a--b")


def others(*statements: str) -> set[str]:
    changes = [SchemaChange(statement, SECOND) for statement in statements]
    found = reassigned_tables(changes, TABLES, 0, SECOND)
    assert all(at_ns == SECOND - 1_000 for at_ns in found.values())
    return set(found)


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("RENAME TABLE a TO tmp, b TO a, tmp TO b", {"a", "B"}),
        ("ALTER TABLE tmp RENAME TO A", {"a"}),
        ("alter table `b` rename to `c`, add synonym `b`", {"B"}),
        ("ALTER TABLE c RENAME WITH SYNONYM TO b", {"B"}),
        ('ALTER TABLE "public"."b" RENAME TO "c"', {"B"}),
        ("ALTER TABLE sales.Orders RENAME TO sales.Former", {"sales.Orders"}),
        ("ALTER TABLE `sales` . `Orders` RENAME TO `sales.Former`", {"sales.Orders"}),
        ('ALTER TABLE "my table" RENAME TO x', {"my table"}),
        ("DROP TABLE IF EXISTS B", {"B"}),
        ('DROP TABLE "q""t"', {'q"t'}),
        ('ALTER TABLE "public"."q""T" RENAME TO "n`t"', {'q"t', "n`t"}),
        ('ALTER TABLE `a--b` RENAME TO `q"t`', {"a--b", 'q"t'}),
        ("/* RENAME TO b */ DROP TABLE a -- and other", {"a"}),
        ("RENAME -- to\n TABLE a # other\n TO b", {"a", "B"}),
        # These leave each name to its table.
        ("CREATE TABLE IF NOT EXISTS a (id INT64) PRIMARY KEY (id)", set()),
        ("ALTER TABLE a ADD COLUMN x STRING(MAX) DEFAULT ('RENAME TO b')", set()),
        ("ALTER TABLE a ADD SYNONYM x", set()),
        ("ALTER TABLE a ALTER COLUMN x SET DEFAULT ('it''s \\' RENAME other')", set()),
        ("DROP INDEX other", set()),
        ('ALTER TABLE a ADD COLUMN "rename" bigint', set()),
        ("CREATE INDEX other ON `rename`(x)", set()),
        ("CREATE INDEX other ON a(x) -- RENAME\n", set()),
        ("", set()),
    ],
)
def test_a_statement_that_renames_or_drops_tables_counts_for_all_that_it_mentions(
    statement: str, names: set[str]
) -> None:
    assert others(statement) == names


def test_the_last_statement_of_a_span_counts() -> None:
    swap = "RENAME TABLE a TO x, other TO a, x TO other"
    changes = [SchemaChange(swap, second * SECOND) for second in (1, 2, 3, 4)]
    changes.append(SchemaChange("DROP TABLE a", None))
    before_ns = 3 * SECOND - 1_000
    assert reassigned_tables(changes, TABLES, SECOND, 3 * SECOND) == {
        "a": before_ns,
        "other": before_ns,
    }
    assert reassigned_tables(changes, TABLES, 4 * SECOND, 9 * SECOND) == {}


def test_a_column_that_was_dropped_and_is_there_again_is_another_one() -> None:
    statements = [
        "ALTER TABLE a DROP COLUMN x",
        'ALTER TABLE "a" DROP y',
        "ALTER TABLE A DROP COLUMN IF EXISTS `Z`",
        "ALTER TABLE a DROP CONSTRAINT kept",
        "ALTER TABLE a ALTER COLUMN kept DROP NOT NULL",
        "ALTER TABLE sales.Orders DROP COLUMN gone",
        "ALTER TABLE a DROP",
        'ALTER TABLE a DROP COLUMN "v.""x"',
        'ALTER TABLE a DROP COLUMN "public.kept"',
        'ALTER TABLE a ALTER COLUMN "drop" DROP NOT NULL',
    ]
    changes = [SchemaChange(statement, SECOND) for statement in statements]
    columns = {"a": {"x", "y", "z", 'v."x', "kept", "drop"}, "sales.Orders": {"kept"}}
    others_of_a = {"x", "y", "z", 'v."x'}
    assert set(recreated_columns(changes, columns, 0, SECOND)) == {("a", c) for c in others_of_a}
    assert recreated_columns(changes, columns, SECOND, 2 * SECOND) == {}


def test_of_a_request_what_was_not_carried_out_counts_as_long_as_it_may_be() -> None:
    running = DdlUpdate(("one", "two"), (SECOND,), is_done=False)
    failed = DdlUpdate(("three", "four"), (SECOND,), is_done=True)
    assert changes_of([running, failed]) == [
        SchemaChange("one", SECOND),
        SchemaChange("two", None),
        SchemaChange("three", SECOND),
    ]


@given(st.text(alphabet="ab`\"'.-#/* \n\\", max_size=40))
def test_any_text_can_be_read(text: str) -> None:
    change = SchemaChange(f"ALTER TABLE a RENAME TO b {text}", SECOND)
    assert change.renames
    words = [word for word, _ in change.words[:5]]
    assert words == ["alter", "table", "a", "rename", "to"]
    assert change.dropped_column is None


@pytest.mark.parametrize(
    ("at_ns", "is_same"),
    [(None, False), (SECOND, True), (SECOND + 1, False), (2 * SECOND, False), (3 * SECOND, True)],
)
def test_a_schema_is_another_one_after_a_statement_since_then_or_one_that_may_be_committed(
    at_ns: int | None, is_same: bool
) -> None:
    assert is_unchanged([SchemaChange("ANYTHING", at_ns)], SECOND, 2 * SECOND) is is_same
