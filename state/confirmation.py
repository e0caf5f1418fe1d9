"""The rule by which a committed epoch confirms facts about partitions, without a database.

state.commit reads the plan's rows for it and writes what it returns.
"""

from collections.abc import Collection
from typing import NamedTuple

from slackwater.state.models import PartitionKey


class Confirmed(NamedTuple):
    """A fact about partitions that an epoch confirms.

    Attributes:
        field: the field of Partition that says it. It has the start of the first epoch that
            confirms the fact: that of a later one is not written over it.
        keys: the partitions' keys.
    """

    field: str
    keys: Collection[PartitionKey]


def confirm(
    claims: Collection[PartitionKey], observed_ends: Collection[PartitionKey]
) -> tuple[Confirmed, ...]:
    """Return the facts that the commit of an epoch confirms.

    All tasks of the committed plan were sealed. So they have read all that they had claimed, and
    agree on the ends.

    Args:
        claims: the partitions that the committed plan had to read from their starts.
        observed_ends: those whose end it has observed.
    """
    return (
        Confirmed("start_confirmed_in_epoch_ns", claims),
        Confirmed("end_confirmed_in_epoch_ns", observed_ends),
    )
