"""Decoding one by one: from Spanner's PartialResultSets to change records, in both dialects and
both partition modes.

The reference: it reads every message and names what is wrong with it. Values of columns stay JSON
texts: no type is converted here.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from google.cloud.spanner_v1.types import ResultSetMetadata, TypeCode

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.decode.googlesql_records import GoogleSqlRows
from slackwater.reader.decode.postgresql_records import PostgreSqlRows
from slackwater.reader.decode.proto_records import ProtoRows, is_change_stream_record
from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.errors import DecodeError, UnsupportedStreamError
from slackwater.reader.records import ChangeRecord


class ChangeRecordDecoder:
    """A decoder of the messages of one query, in the order in which they came.

    A value may come in pieces, in several messages ("chunked"); its pieces are stored until it is
    complete. When a query is opened again, Spanner sends the value again from its beginning, and
    reset() drops the pieces.

    Args:
        mode: the stream's partition mode. Rows of the other mode are refused: a caller that does
            not expect their records would pass over them, and lose partitions.
    """

    def __init__(self, mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE) -> None:
        self._mode = mode
        self.reset()

    def reset(self) -> None:
        """Forget all messages so far, before the first one of a query that is opened again."""
        self._row: Callable[[Any], list[ChangeRecord]] | None = None
        self._rows = ResultRows(1)

    def set_metadata(self, metadata: bytes) -> None:
        """Use the serialized metadata of a first message that is decoded elsewhere."""
        self._row = _row_decoder(metadata, self._mode)

    def feed(self, message: bytes) -> list[ChangeRecord]:
        """Return the records that a serialized PartialResultSet completes.

        Raises:
            DecodeError: the message is not as Spanner documents it.
            UnsupportedStreamError: the stream's records have a form that can't be read.
        """
        rows = self._rows.feed(message)
        if self._row is None:
            self._row = _row_decoder(self._rows.metadata.SerializeToString(), self._mode)
        row = self._row
        return [record for (value,) in rows for record in row(value)]

    @property
    def has_partial_value(self) -> bool:
        """True if the next message continues a value that this one began."""
        return self._rows.has_partial_value

    def finish(self) -> None:
        """Check, at the end of the query, that no value is incomplete.

        Raises:
            DecodeError: the query ended in the middle of a value.
        """
        if self._rows.has_partial_value:
            raise DecodeError("a query ended in the middle of a value.")


@lru_cache(maxsize=64)
def _row_decoder(metadata: bytes, mode: PartitionMode) -> Callable[[Any], list[ChangeRecord]]:
    """Return the decoder of rows; the queries of a stream have the same, by the thousand."""
    fields = ResultSetMetadata.pb(ResultSetMetadata.deserialize(metadata)).row_type.fields
    if not fields:
        # A partition query always has them: the answer is broken, and not the stream's form.
        raise DecodeError("the first message of a query has no metadata.")
    kind = fields[0].type_
    code = kind.code if len(fields) == 1 else None
    if mode is PartitionMode.MUTABLE_KEY_RANGE:
        if code is not None and is_change_stream_record(kind):
            return ProtoRows().decode
        raise UnsupportedStreamError(
            f"the change stream's records have type code {code}.",
            f"They are not those of partition_mode {mode}, which the stream had before;"
            " it may have been created again with another one",
        )
    if code == TypeCode.JSON:
        return PostgreSqlRows().decode
    if code == TypeCode.ARRAY and kind.array_element_type.code == TypeCode.STRUCT:
        return GoogleSqlRows(kind.array_element_type).decode
    raise UnsupportedStreamError(
        f"the change stream's records have type code {code}.",
        "Streams with partition_mode MUTABLE_KEY_RANGE can't be read yet;"
        " create one with partition_mode IMMUTABLE_KEY_RANGE",
    )
