"""The requests of a partition query: transaction, role, priority, tag, replicas, session."""

from google.protobuf import json_format

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.transport.connection import Connection
from tests.faults.breaking_spanner import BreakingSpanner

REPLICAS = {
    "includeReplicas": {"replicaSelections": [{"location": "us-east1", "type": "READ_ONLY"}]}
}


def ask(spanner: BreakingSpanner, **options: object) -> None:
    stream = ChangeStream(
        "project",
        "instance",
        "database",
        "s",
        endpoint=plaintext(f"127.0.0.1:{spanner.port}"),
        **options,  # type: ignore[arg-type]
    )
    connection = Connection(stream)
    query = PartitionQuery(
        connection,
        Dialect.GOOGLE_STANDARD_SQL,
        partition_token=None,
        start_timestamp_ns=500,
        end_timestamp_ns=500,
        heartbeat_ms=1_000,
    )
    assert list(query) == []
    connection.close()


def test_a_query_is_a_strong_single_use_read_in_a_multiplexed_session() -> None:
    with BreakingSpanner([], []) as spanner:
        ask(spanner)
        assert spanner.asked[0].transaction.single_use.read_only.strong
        assert spanner.asked[0].session.endswith("/sessions/1")
        assert spanner.multiplexed == [True]
        assert spanner.roles == [""]
        assert spanner.asked[0].params.fields["partition_token"].WhichOneof("kind") == "null_value"


def test_role_priority_tag_and_replicas_reach_spanner() -> None:
    with BreakingSpanner([], []) as spanner:
        ask(
            spanner,
            database_role="reader",
            priority="low",
            request_tag="app=slackwater",
            directed_read=REPLICAS,
        )
        asked = spanner.asked[0]
        assert spanner.roles == ["reader"]
        assert json_format.MessageToDict(asked.request_options) == {
            "priority": "PRIORITY_LOW",
            "requestTag": "app=slackwater",
        }
        assert json_format.MessageToDict(asked.directed_read_options) == REPLICAS
