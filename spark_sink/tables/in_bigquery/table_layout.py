"""The properties of new tables in BigQuery: labels, partitions and clustering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_LABEL: Final = "labels."
_OWN: Final = "slackwater."
_OF_PARTITIONS: Final = ("partition_by", "partition_expiration_days")
_PARTITIONS: Final = ("HOUR", "DAY", "MONTH", "YEAR")
_DAY_MS: Final = 24 * 3_600_000
# BigQuery's documentation, "Clustered tables".
CLUSTERED_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The properties that are asked of new tables.

    Attributes:
        labels: by their keys.
        cluster_by: the columns; none for those of the key, which mirrors are clustered by.
        partition_by: what a changelog's partition has of its commit timestamps.
        partition_expiration_ms: after which BigQuery removes a partition, in milliseconds; None for
            never.
    """

    labels: Mapping[str, str]
    cluster_by: Sequence[str] = ()
    partition_by: str = "DAY"
    partition_expiration_ms: int | None = None


def table_layout(properties: Mapping[str, str], *, are_merged: bool) -> TableLayout:
    """Return what sink.table_properties asks for; those of this program are passed over.

    Args:
        properties: by their names.
        are_merged: the tables are mirrors, whose rows are of no time.

    Raises:
        ValueError: a name or a value is not possible.
    """
    labels: dict[str, str] = {}
    layout: dict[str, str] = {}
    names = ["cluster_by"] if are_merged else ["cluster_by", *_OF_PARTITIONS]
    for name, value in properties.items():
        if name.startswith(_LABEL):
            labels[name.removeprefix(_LABEL)] = value
        elif name in names:
            layout[name] = value
        elif not name.startswith(_OWN):
            raise ValueError(f"{name}: in BigQuery there are labels.NAME and {', '.join(names)}")
    cluster_by = [name.strip() for name in layout.get("cluster_by", "").split(",") if name.strip()]
    if len(cluster_by) > CLUSTERED_MAX:
        raise ValueError(f"cluster_by: BigQuery takes {CLUSTERED_MAX} columns")
    partition_by = layout.get("partition_by", "DAY").upper()
    if partition_by not in _PARTITIONS:
        raise ValueError(f"partition_by is {partition_by}, and not one of {', '.join(_PARTITIONS)}")
    days = layout.get("partition_expiration_days")
    if days is not None and not (days.isdecimal() and int(days)):
        raise ValueError(f"partition_expiration_days is {days}, and not a number of days")
    expiration_ms = None if days is None else int(days) * _DAY_MS
    return TableLayout(labels, cluster_by, partition_by, expiration_ms)
