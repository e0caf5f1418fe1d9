"""Events: the changes of single rows that a data change record reports, one for each mod."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from slackwater.spark_sink.envelopes.values import Converter, Values, json_converter, row_values
from slackwater.timestamp import datetime_to_us

Row = Mapping[str, Any]
# The letters of Debezium's operations.
OPS: Final = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
# The value capture type with the whole row after a change, and the old values that changed.
WITH_OLD_VALUES: Final = "NEW_ROW_AND_OLD_VALUES"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one row.

    Attributes:
        record: the row of the output's contract that it comes from.
        mod_number: its number among the record's mods.
        keys: the primary key's columns, in the order in which Spanner lists the columns.
        before: the key and old_values; None for an INSERT.
        after: the key and new_values; None for a DELETE.
    """

    record: Row
    mod_number: int
    keys: Values
    before: Values | None
    after: Values | None

    def without(self, column: str) -> "Event":
        """Return the event without a column that is not in the key."""
        before, after = (
            row and {name: value for name, value in row.items() if name != column}
            for row in (self.before, self.after)
        )
        return replace(self, before=before, after=after)

    @property
    def table(self) -> str:
        """The table's full name."""
        return str(self.record["table_name"])

    @property
    def whole_before(self) -> Values | None:
        """The row before an update that has the whole row after it: other columns did not change.

        It is before, if the whole row or the old values are not known.
        """
        if self.before is None or self.after is None:
            return self.before
        has_both = self.record["value_capture_type"] == WITH_OLD_VALUES
        return {**self.after, **self.before} if has_both else self.before

    @property
    def is_backfill(self) -> bool:
        """Whether it is a row of an initial scan, which belongs to no transaction."""
        return not self.record["server_transaction_id"]

    @property
    def commit_us(self) -> int:
        """The commit timestamp in microseconds since the Unix epoch."""
        return datetime_to_us(self.record["commit_timestamp"])


def events(record: Row, converter: Converter = json_converter) -> Iterator[Event]:
    """Yield the events of a data change record, in the order of its mods.

    Args:
        record: a row of the output's contract, timestamps as datetime in UTC.
        converter: returns the conversion of a column type's values.

    Raises:
        ValueError: a mod's JSON can't be read, or a value does not have its column's type.
    """
    columns = record["column_types"]
    kind = record["mod_type"]
    for number, mod in enumerate(record["mods"]):
        keys = row_values(mod["keys"], columns, converter)
        # Every value capture type has the key. It decides which other columns there are.
        old, new = (
            row_values(mod[name], columns, converter) for name in ("old_values", "new_values")
        )
        before = None if kind == "INSERT" else {**keys, **old}
        after = None if kind == "DELETE" else {**keys, **new}
        yield Event(record, number, keys, before, after)
