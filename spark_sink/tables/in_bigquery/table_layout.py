"""The properties of new tables in BigQuery: labels, partitions and clustering."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.spark_sink.tables.time_partitions import (
    PARTITIONING,
    TimePartitions,
    time_partitions,
)

_LABEL: Final = "labels."
_OWN: Final = "slackwater."
# BigQuery's documentation, "Clustered tables".
CLUSTERED_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The properties that are asked of new tables.

    Attributes:
        labels: by their keys.
        cluster_by: the columns; none for those of the key, which mirrors are clustered by.
        partitions: a changelog's; None for a mirror.
    """

    labels: Mapping[str, str]
    cluster_by: Sequence[str] = ()
    partitions: TimePartitions | None = None


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
    names = ["cluster_by"] if are_merged else ["cluster_by", *PARTITIONING]
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
    partitions = None if are_merged else time_partitions(layout, "DAY")
    return TableLayout(labels, cluster_by, partitions)
