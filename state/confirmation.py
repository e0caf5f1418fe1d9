"""What a committed epoch confirms of partitions: the rule, without a database.

state.commit reads the facts for it and writes what it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from slackwater.state.models import Partition, PartitionKey


def confirm(
    partitions: Iterable[Partition],
    read_from_start: Collection[PartitionKey],
    ended: Collection[PartitionKey],
    epoch_start_ns: int,
) -> list[Partition]:
    """Return the partitions of which an epoch confirms something, with what it confirms.

    What an earlier epoch has confirmed stays: a replay of a later one must not take it back.

    Args:
        partitions: those that the committed plan has read from their starts or to their ends, as
            they are recorded.
        read_from_start: the keys of those that it has read from their starts.
        ended: the keys of those whose end it has observed.
        epoch_start_ns: the start of the epoch's cut.
    """
    confirmed = []
    for partition in partitions:
        key, after = partition.key, partition
        if key in read_from_start and after.start_confirmed_in_epoch_ns is None:
            after = replace(after, start_confirmed_in_epoch_ns=epoch_start_ns)
        if key in ended and after.end_confirmed_in_epoch_ns is None:
            after = replace(after, end_confirmed_in_epoch_ns=epoch_start_ns)
        if after is not partition:
            confirmed.append(after)
    return confirmed
