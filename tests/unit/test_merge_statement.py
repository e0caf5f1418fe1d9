"""The MERGE of a mirror, by its text: what it does to a table the Spark tests show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from slackwater.spark_sink.sql.columns import Column, columns_from_records, mirror_columns
from slackwater.spark_sink.sql.merge_statement import forget_statement, merge_statement

ID = Column("Id", "INT64", is_key=True)
NAME = Column("Name`s", "STRING", is_key=False)


def test_a_table_with_only_key_columns_is_never_updated() -> None:
    statement = merge_statement("m", "v", (ID,), keeps_deleted=False)
    assert statement.splitlines() == [
        "MERGE INTO m AS mirror USING v AS latest ON mirror.`Id` <=> latest.row.`Id`",
        "WHEN MATCHED AND latest.deleted THEN DELETE",
        "WHEN NOT MATCHED AND NOT latest.deleted THEN INSERT (`Id`) VALUES (latest.row.`Id`)",
    ]


def test_a_table_without_a_key_has_one_row() -> None:
    statement = merge_statement("m", "v", (NAME,), keeps_deleted=False)
    assert statement.splitlines()[0].endswith("ON TRUE")


def test_unchanged_columns_stay_unless_the_row_is_whole() -> None:
    deleted, whole, changed, new = merge_statement(
        "m", "v", (ID, NAME), keeps_deleted=False
    ).splitlines()[1:]
    assert deleted.endswith("DELETE")
    assert whole.endswith("UPDATE SET mirror.`Name``s` = latest.row.`Name``s`")
    assert "map_contains_key(latest.changed_columns, 'Name`s')" in changed
    assert changed.endswith("ELSE mirror.`Name``s` END")
    assert new.endswith("VALUES (latest.row.`Id`, latest.row.`Name``s`)")


def test_keys_that_differ_by_nanoseconds_are_compared() -> None:
    columns = mirror_columns([Column("At", "TIMESTAMP", is_key=True)])
    join, *clauses = merge_statement("m", "v", columns, keeps_deleted=False).splitlines()
    nanoseconds = "mirror.`_At_nanoseconds`"
    assert join.endswith(f"AND {nanoseconds} <=> latest.row.`_At_nanoseconds`")
    assert all(
        clause.endswith(f"SET {nanoseconds} = latest.row.`_At_nanoseconds`")
        for clause in clauses[1:3]
    )
    in_value = [Column("At", "TIMESTAMP", is_key=False), Column("Id", "INT64", is_key=True)]
    assert mirror_columns(in_value) == tuple(in_value)


def test_the_rows_of_a_former_table_and_the_values_of_a_former_column_are_dropped() -> None:
    at = datetime(2026, 1, 31, 9, tzinfo=UTC)
    cleared = merge_statement("m", "v", (ID, NAME), keeps_deleted=False, cleared_at=at)
    assert cleared.splitlines()[-1] == "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    marked = merge_statement("m", "v", (ID, NAME), keeps_deleted=True, cleared_at=at)
    assert marked.splitlines()[-1] == (
        "WHEN NOT MATCHED BY SOURCE AND NOT mirror.`_is_deleted` THEN UPDATE SET"
        " mirror.`_is_deleted` = true, mirror.`_commit_timestamp` ="
        " timestamp_micros(1769850000000000)"
    )
    renewed = (ID, replace(NAME, absent_at=at))
    *_, others = forget_statement("m", renewed, keeps_deleted=False).splitlines()
    assert others == "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET mirror.`Name``s` = NULL"
    _, _, _, changed, *_ = merge_statement("m", "v", renewed, keeps_deleted=False).splitlines()
    assert changed.endswith("ELSE NULL END")


def test_a_soft_deleted_row_has_its_last_values_and_a_mark() -> None:
    deleted, *_ = merge_statement("m", "v", (ID, NAME), keeps_deleted=True).splitlines()[1:]
    assert "Name" not in deleted
    assert "mirror.`_is_deleted` = latest.deleted" in deleted
    assert "mirror.`_commit_timestamp` = latest.commit_timestamp" in deleted


def column(name: str, position: int, code: str = "INT64") -> dict[str, object]:
    return {
        "name": name,
        "type": f'{{"code":"{code}"}}',
        "is_primary_key": name == "Id",
        "ordinal_position": position,
    }


def test_columns_are_in_the_tables_order_and_the_latest_type_wins() -> None:
    lists = [
        [column("Id", 1), column("B", 3)],
        [column("Id", 1), column("A", 2), column("B", 3, "STRING")],
    ]
    assert columns_from_records(lists) == (
        ID,
        Column("A", "INT64", is_key=False),
        Column("B", "STRING", is_key=False, former_types=('{"code":"INT64"}',)),
    )


def test_types_are_spelled_as_the_information_schema_does() -> None:
    array = '{"array_element_type":{"code":"INT64"},"code":"ARRAY"}'
    annotated = '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}'
    lists = [
        [
            column("A", 1) | {"type": array},
            column("B", 2) | {"type": annotated},
            column("C", 3) | {"type": '{"code":"PROTO","proto_type_fqn":"a.B"}'},
            column("D", 4) | {"type": "no JSON"},
        ]
    ]
    columns = columns_from_records(lists)
    assert [c.spanner_type for c in columns] == ["ARRAY<INT64>", "PG_NUMERIC", "PROTO", "no JSON"]
    assert [c.spark_type for c in columns] == ["ARRAY<BIGINT>", "STRING", "STRING", "STRING"]
