import pytest

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import ChangeStreamNameError
from slackwater.reader.transport.statement import partition_query


def query(dialect: Dialect, **changes: object) -> object:
    arguments: dict[str, object] = {
        "start_timestamp_ns": 500,
        "end_timestamp_ns": 1_500,
        "partition_token": "token",
        "heartbeat_ms": 10_000,
    }
    return partition_query(dialect, "Orders", **(arguments | changes))  # type: ignore[arg-type]


def test_a_googlesql_query_reads_the_streams_function_by_named_arguments() -> None:
    statement = partition_query(
        Dialect.GOOGLE_STANDARD_SQL,
        "Orders",
        start_timestamp_ns=500,
        end_timestamp_ns=1_500,
        partition_token=None,
        heartbeat_ms=10_000,
    )
    assert "FROM `READ_Orders`(start_timestamp => @start_timestamp," in statement.sql
    assert statement.params == {
        "start_timestamp": "1970-01-01T00:00:00.000000500Z",
        "end_timestamp": "1970-01-01T00:00:00.000001500Z",
        "partition_token": None,
        "heartbeat_ms": "10000",
    }


def test_a_postgresql_query_keeps_the_streams_case() -> None:
    statement = partition_query(
        Dialect.POSTGRESQL,
        "Orders",
        start_timestamp_ns=500,
        end_timestamp_ns=None,
        partition_token="t",
        heartbeat_ms=1_000,
    )
    assert statement.sql == 'SELECT * FROM "spanner"."read_json_Orders"($1, $2, $3, $4, null)'
    assert statement.params["p2"] is None
    assert statement.types["p2"] == "TIMESTAMP"


@pytest.mark.parametrize("heartbeat_ms", [999, 300_001])
def test_a_heartbeat_outside_spanners_bounds_is_refused(heartbeat_ms: int) -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        query(Dialect.POSTGRESQL, heartbeat_ms=heartbeat_ms)


def test_a_query_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="end before"):
        query(Dialect.POSTGRESQL, end_timestamp_ns=400)


@pytest.mark.parametrize("name", ["S`; DROP TABLE T; --", 'S"', "S S", "1S", "", "Ünicode", "a.b"])
def test_a_change_streams_name_cannot_carry_sql(name: str) -> None:
    with pytest.raises(ChangeStreamNameError, match="change_stream"):
        ChangeStream("project", "instance", "database", name)
