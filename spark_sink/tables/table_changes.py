"""The changes to one table, and their identifiers in its properties."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from slackwater.timestamp import datetime_to_ns, datetime_to_us, parse_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa

# The table property with the full name of the Spanner table that it was created for.
SOURCE_TABLE_PROPERTY: Final = "slackwater.table"
LOW_WATERMARK_PROPERTY: Final = "slackwater.low_watermark"


@dataclass(frozen=True, slots=True)
class MergeId:
    """The identifier of a merge into a table, by which repeating it changes nothing.

    Attributes:
        application: names the writer.
        low_watermark: the epoch's.
    """

    application: str
    low_watermark: datetime

    @property
    def version(self) -> int:
        """The low watermark in microseconds, as in transaction identifiers."""
        return datetime_to_us(self.low_watermark)

    def is_before(self, version: int | None) -> bool:
        """Return whether a later epoch than this one has the version; None is that of none."""
        return version is not None and version > self.version

    def may_be_published(self, published: str | None, merged: int | None) -> bool:
        """Return whether a table is to state the low watermark.

        Args:
            published: the one that it has; None for none.
            merged: the version of the last merge into it; None without one.
        """
        if published is not None and parse_rfc3339(published) >= datetime_to_ns(self.low_watermark):
            return False
        return not self.is_before(merged)


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """The treatment of deleted rows, and of rows that an epoch does not change.

    Attributes:
        are_kept: a deleted row stays with its last values, and is marked as deleted.
        cleared_at: rows that the epoch does not change are deleted, as of this time: they are those
            of a former table. None if they stay.
        corrected: the corrections before the epoch's changes, as latest_rows() makes them, in the
            columns of these; None for none.
    """

    are_kept: bool
    cleared_at: datetime | None = None
    corrected: "pa.Table | None" = None


@dataclass(frozen=True, slots=True)
class AppendId:
    """The identifier of an append to a table, by which repeating it changes nothing.

    Attributes:
        application: names the writer; each application counts its own versions.
        version: rises with each append of the application.
        low_watermark: the epoch's, or the initial scan's.
        chunk: the chunk's number in an initial scan; None for an epoch.
    """

    application: str
    version: int
    low_watermark: datetime
    chunk: int | None = None


class MissingColumn(NamedTuple):
    """A column, or a field of a struct, that a table lacks.

    Attributes:
        struct: the column that the field belongs to; None for a column.
        name: not quoted.
        kind: the type in Spark SQL.
        spanner_type: the type in Spanner; empty for a struct or its field.
    """

    struct: str | None
    name: str
    kind: str
    spanner_type: str = ""
