"""The shapes of tables that an epoch's messages are made by."""

from slackwater.spark_sink.sql.table_shape import TableShape, learned_shapes

A = TableShape(("y", "x"), {"x": "INT64", "y": "INT64"}, ("y",))
B = TableShape(("z",), {"z": "STRING(9)"})


def types(**kinds: str) -> list[dict[str, object]]:
    columns = enumerate(kinds.items(), 1)
    return [
        {"name": name, "type": f'{{"code":"{kind}"}}', "ordinal_position": place}
        for place, (name, kind) in columns
    ]


def test_a_table_has_its_columns_and_those_that_a_record_has_besides() -> None:
    columns = A.with_columns_of(types(x="INT64", new="BOOL"))
    assert list(columns.items()) == [("x", "INT64"), ("y", "INT64"), ("new", "BOOL")]


def test_a_record_decides_a_type_that_is_another_one() -> None:
    assert B.with_columns_of(types(z="STRING")) == {"z": "STRING(9)"}
    assert B.with_columns_of(types(z="BYTES")) == {"z": "BYTES"}


def test_of_keys_alone_those_of_all_tables_are_learned_at_once() -> None:
    shapes = learned_shapes({}, {"A": A, "B": B}, ["A", "gone"], has_columns=False)
    assert shapes == {"A": TableShape(A.key), "B": TableShape(B.key), "gone": TableShape()}
    # Later there is another table of that name, or none.
    other = {"A": TableShape(("x",))}
    assert learned_shapes(shapes, other, ["C"], has_columns=False) == {**shapes, "C": TableShape()}
    # A table that was missing is there later.
    again = learned_shapes(shapes, {"gone": A}, ["C"], has_columns=False)
    assert again["gone"] == TableShape(A.key)


def test_of_columns_only_tables_with_records_are_learned_and_then_learned_anew() -> None:
    shapes = learned_shapes({}, {"A": A, "B": B}, ["A", "gone"], has_columns=True)
    assert shapes == {"A": A, "gone": TableShape()}
    more = TableShape(A.key, {**A.columns, "new": "BOOL"}, A.nullable)
    assert learned_shapes(shapes, {"A": more}, [], has_columns=True) == {
        "A": more,
        "gone": TableShape(),
    }
    assert learned_shapes(shapes, {}, ["B"], has_columns=True) == {**shapes, "B": TableShape()}
