"""Partitions of changelogs in databases, as sink.table_properties asks for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PARTITION_BY: Final = "partition_by"
EXPIRATION_DAYS: Final = "partition_expiration_days"
PARTITIONING: Final = (PARTITION_BY, EXPIRATION_DAYS)
_UNITS: Final = ("HOUR", "DAY", "MONTH", "YEAR")


@dataclass(frozen=True, slots=True)
class TimePartitions:
    """The partitions of a table.

    Attributes:
        unit: what a partition has of the commit timestamps: an HOUR, DAY, MONTH or YEAR in UTC.
        days: those after which a partition is removed; None for never.
    """

    unit: str
    days: int | None = None


def time_partitions(properties: Mapping[str, str], default: str | None) -> TimePartitions | None:
    """Return the partitions that properties ask for; None for none.

    Args:
        properties: by their names.
        default: the unit without the property partition_by; None for no partitions.

    Raises:
        ValueError: a value is not possible.
    """
    unit = properties.get(PARTITION_BY, default)
    days = properties.get(EXPIRATION_DAYS)
    if unit is None:
        if days is not None:
            raise ValueError(f"{EXPIRATION_DAYS} needs {PARTITION_BY}")
        return None
    if unit.upper() not in _UNITS:
        raise ValueError(f"{PARTITION_BY} is {unit}, and not one of {', '.join(_UNITS)}")
    if days is not None and not (days.isdecimal() and int(days)):
        raise ValueError(f"{EXPIRATION_DAYS} is {days}, and not a number of days")
    return TimePartitions(unit.upper(), None if days is None else int(days))
