"""The rows of a query's PartialResultSets, of which a value may come in pieces."""

from typing import Any, Final

from google.cloud.spanner_v1.types import PartialResultSet

from slackwater.reader.errors import DecodeError

_PartialResultSet: Final[Any] = PartialResultSet.pb(PartialResultSet()).__class__


class ResultRows:
    """The rows of the messages of any query, in the order in which they came.

    Args:
        columns: the number of values in a row.

    Attributes:
        metadata: the result set's, once the first message has come.
        has_partial_value: the next message continues a value that this one began.
    """

    def __init__(self, columns: int) -> None:
        self.metadata: Any = None
        self._columns = columns
        self._values: list[Any] = []
        self.has_partial_value = False

    def feed(self, message: bytes) -> list[list[Any]]:
        """Return the rows that a serialized PartialResultSet completes, as google.protobuf.Values.

        Raises:
            DecodeError: the message is not as Spanner documents it.
        """
        values, width = self.feed_values(message), self._columns
        return [values[i : i + width] for i in range(0, len(values), width)]

    def feed_values(self, message: bytes) -> list[Any]:
        """Return the same row by row, in one list."""
        try:
            part = _PartialResultSet.FromString(message)
        except Exception as error:
            raise DecodeError(f"a message is not a PartialResultSet: {error}") from error
        if self.metadata is None:
            self.metadata = part.metadata
        values = list(part.values)
        if self.has_partial_value and values:
            values[0] = merge_chunk(self._values.pop(), values[0])
        self.has_partial_value = part.chunked_value if values else self.has_partial_value
        self._values += values
        whole = len(self._values) - self.has_partial_value
        end = whole - whole % self._columns
        complete = self._values[:end]
        del self._values[:end]
        return complete


def merge_chunk(first: Any, second: Any) -> Any:
    """Join two pieces of a google.protobuf.Value, by PartialResultSet.chunked_value's rules.

    Strings are joined. Lists are joined, too; if the last item of the first and the first of the
    second can be pieces of one value, these two are merged first.

    Raises:
        DecodeError: the pieces are of kinds that never come in pieces.
    """
    kind, second_kind = first.WhichOneof("kind"), second.WhichOneof("kind")
    if kind != second_kind or kind not in ("string_value", "list_value"):
        raise DecodeError(f"values of kinds {kind} and {second_kind} can't be merged.")
    if kind == "string_value":
        first.string_value += second.string_value
        return first
    ours, theirs = first.list_value.values, second.list_value.values
    rest = list(theirs)
    if ours and rest and _is_cut(ours[-1], rest[0]):
        merge_chunk(ours[-1], rest.pop(0))
    ours.extend(rest)
    return first


def _is_cut(first: Any, second: Any) -> bool:
    kind = first.WhichOneof("kind")
    return kind == second.WhichOneof("kind") and kind in ("string_value", "list_value")
