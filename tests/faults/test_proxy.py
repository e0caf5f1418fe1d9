"""The fault proxy itself: it passes queries unchanged, and injects what its rules say."""

import random

import grpc
import pytest
from google.cloud.spanner_v1.types import ExecuteSqlRequest

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
)
from slackwater.reader.transport.connection import Connection
from tests.faults.breaking_spanner import BreakingSpanner
from tests.faults.proxy import (
    STREAMING,
    Asked,
    Breaks,
    Delays,
    FaultProxy,
    HideEnds,
    Rule,
    Script,
    script,
)
from tests.faults.statuses import REFUSALS, RESETS, Status
from tests.faults.test_query_breaks import RECORDS

ASKED = Asked("p", 500, 10_500, False)


def read(host: str, *, end_ns: int) -> list[ChangeRecord]:
    stream = ChangeStream("project", "instance", "database", "s", endpoint=plaintext(host))
    connection = Connection(stream)
    query = PartitionQuery(
        connection,
        Dialect.GOOGLE_STANDARD_SQL,
        partition_token="p",
        start_timestamp_ns=500,
        end_timestamp_ns=end_ns,
        heartbeat_ms=1_000,
    )
    try:
        return [record for message in query for record in message.records]
    finally:
        connection.close()


def through(rules: list[Rule], *, end_ns: int = 10_500) -> tuple[list[ChangeRecord], FaultProxy]:
    with (
        BreakingSpanner(RECORDS, []) as spanner,
        FaultProxy(f"127.0.0.1:{spanner.port}", rules, seed=1) as proxy,
    ):
        return read(proxy.host, end_ns=end_ns), proxy


def a_query() -> bytes:
    params = {"start_timestamp": "1970-01-01T00:00:00Z", "partition_token": "p"}
    sql = "SELECT ChangeRecord FROM `READ_s`()"
    return bytes(ExecuteSqlRequest.serialize(ExecuteSqlRequest(sql=sql, params=params)))


def test_each_fault_arrives_as_its_status_code_after_its_messages() -> None:
    seen = set()
    with BreakingSpanner(RECORDS, []) as spanner:
        for seed in range(300):
            rules = [Breaks(1.0, messages_max=0, refusals=0.3)]
            with FaultProxy(f"127.0.0.1:{spanner.port}", rules, seed=seed) as proxy:
                channel = grpc.insecure_channel(proxy.host)
                call = channel.unary_stream(STREAMING)(a_query())
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                channel.close()
                status = Status(caught.value.code(), caught.value.details())
                seen.add(status)
                assert proxy.injected == {status.kind: 1}
            if seen == {*RESETS, *REFUSALS}:
                break
    assert seen == {*RESETS, *REFUSALS}
    assert {status.code for status in seen} == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_only_an_end_near_the_querys_end_is_hidden() -> None:
    without = [r for r in RECORDS if not isinstance(r, ChildPartitionsRecord)]
    got, proxy = through([HideEnds(margin_ns=6_000)])
    assert got == without
    assert proxy.injected == {"hidden end": 1}
    got, proxy = through([HideEnds(margin_ns=6_000)], end_ns=20_500)
    assert got == RECORDS
    assert proxy.injected == {}


def test_the_seed_determines_the_faults_of_a_query() -> None:
    rules: list[Rule] = [Delays(0.5), Breaks(0.5)]
    made = [script(rules, ASKED, random.Random(seed), 0, 0) for seed in range(50)]
    assert made == [script(rules, ASKED, random.Random(seed), 0, 0) for seed in range(50)]
    assert len(set(made)) > 5
    assert script([], ASKED, random.Random(1), 0, 0) == Script()
