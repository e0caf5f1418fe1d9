"""Transactions that the driver keeps from epoch to epoch are fenced like any: on a real broker."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.kafka.shard_sender import KeptTransactions
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_pipeline import AT, FENCED, NO_SPARK, Pipeline, complete, epoch
from tests.support.kafka_pipeline import pipeline as pipeline


def test_a_driver_that_keeps_its_transactions_sends_each_epoch_once(pipeline: Pipeline) -> None:
    owner = pipeline.owner()
    owner.position(NO_SPARK)
    kept: dict[int, KeptTransactions] = {}
    assert pipeline.send_from_here(epoch(0, 20), 20, kept) == 20
    kept_first = {shard: of_shard.transactions for shard, of_shard in kept.items()}
    # An epoch that comes again, as after an error that came late.
    assert pipeline.send_from_here(epoch(0, 20), 20, kept) == 0
    pipeline.close(owner, 20, resolved=True)
    assert pipeline.send_from_here(epoch(20, 40), 40, kept) == 20
    pipeline.close(owner, 40, resolved=True)
    assert {shard: of_shard.transactions for shard, of_shard in kept.items()} == kept_first
    # What was not in use for long may be forgotten by the broker.
    old = {shard: replace(of_shard, at_s=float("-inf")) for shard, of_shard in kept.items()}
    assert pipeline.send_from_here(epoch(40, 60), 60, old) == 20
    assert all(of_shard.transactions is not kept_first[shard] for shard, of_shard in old.items())
    assert pipeline.committed() == Counter(epoch(0, 60))


def test_a_former_owner_that_wakes_up_with_kept_transactions_is_fenced(pipeline: Pipeline) -> None:
    former, kept = pipeline.owner(), dict[int, KeptTransactions]()
    former.position(NO_SPARK)
    pipeline.send_from_here(epoch(0, 20), 20, kept)
    pipeline.close(former, 20, resolved=True)
    successor, kept_by_successor = pipeline.owner(), dict[int, KeptTransactions]()
    assert complete(successor) == AT + timedelta(microseconds=20)
    with pytest.raises(PublishError, match=FENCED):
        # The successor has sent nothing yet.
        pipeline.send_from_here(epoch(20, 40), 40, dict(kept))
    pipeline.send_from_here(epoch(20, 30), 30, kept_by_successor)
    pipeline.close(successor, 30, resolved=True)
    with pytest.raises(PublishError, match=FENCED):
        pipeline.send_from_here(epoch(20, 40), 40, kept)
    assert not kept
    pipeline.send_from_here(epoch(30, 40), 40, kept_by_successor)
    pipeline.close(successor, 40, resolved=True)
    assert pipeline.committed() == Counter(epoch(0, 40))


def test_transactions_that_were_kept_while_tasks_sent_are_fenced(pipeline: Pipeline) -> None:
    owner, kept = pipeline.owner(), dict[int, KeptTransactions]()
    owner.position(NO_SPARK)
    pipeline.send_from_here(epoch(0, 20), 20, kept)
    pipeline.send(epoch(20, 40), 40)
    with pytest.raises(PublishError, match=FENCED):
        pipeline.send_from_here(epoch(40, 60), 60, kept)
    pipeline.send_from_here(epoch(40, 60), 60, {})
    assert pipeline.committed() == Counter(epoch(0, 60))
