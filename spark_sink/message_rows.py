"""The messages of an epoch's records, made with Spark: rows with table, key and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from slackwater.spark_sink.envelopes.change_id import change_id
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.java import map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import RecordBatch
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# The columns that order messages as the database changed.
ORDER: Final = ("commit_timestamp", "server_transaction_id", "record_sequence", "number")
_TIMESTAMPS: Final = ("commit_timestamp", "low_watermark")
# A number that rows of the same key share, in any form of their messages.
ROW_HASH: Final = "row_hash"
# The headers of a message, as Spark's Kafka sink takes them.
HEADERS: Final = "headers"
HEADERS_COLUMN: Final = f"{HEADERS} array<struct<key: string, value: binary>>"
# From a record, its timestamps as datetime, to table_name, key and value of each message.
Wrap = Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]


def messages(
    envelope: Envelope, *, has_row_hash: bool = False, has_uuid: bool = False
) -> MessageRows:
    """Return the maker of an envelope's messages in JSON; see MessageRows."""

    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(m.table, m.key, m.value) for m in envelope.messages(record)]

    return MessageRows(envelope, wrap, has_row_hash=has_row_hash, has_uuid=has_uuid)


@dataclass(frozen=True)
class MessageRows:
    """A maker of a row for each message, of rows of the output's contract.

    Attributes:
        envelope: of the messages. If it has headers, the column HEADERS is added.
        wrap: makes the messages of a record, of which it may need columns beside the contract's.
        kinds: Spark's types of keys and of values.
        has_row_hash: the column ROW_HASH is added.
        has_uuid: the columns uuid, of change_id(), and mod_type are added.
    """

    envelope: Envelope
    wrap: Wrap
    kinds: tuple[str, str] = ("string", "string")
    has_row_hash: bool = False
    has_uuid: bool = False

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns: table_name, key, value, low_watermark, those of ORDER, and added ones."""
        # With Arrow, which the settings do without.
        import pyarrow as pa

        kinds = {"string": pa.string(), "binary": pa.binary()}
        key, value = map(kinds.__getitem__, self.kinds)
        headers = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
        time, text = pa.timestamp("us", "UTC"), pa.string()
        added = {"uuid": text, "mod_type": text} if self.has_uuid else {}
        added |= {HEADERS: headers} if self.envelope.has_headers else {}
        added |= {ROW_HASH: pa.int64()} if self.has_row_hash else {}
        place = {"commit_timestamp": time, "server_transaction_id": text, "record_sequence": text}
        names = {"table_name": text, "key": key, "value": value, **added, "number": pa.int32()}
        return pa.schema({**names, **place, "low_watermark": time})

    @property
    def schema(self) -> StructType:
        """The columns as Spark has them."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema: StructType = from_arrow_schema(self.columns)
        return schema

    def frame(self, changes: DataFrame) -> DataFrame:
        """Return the rows of an epoch's messages."""
        return map_in_arrow(changes, self.of_batches, self.schema)

    def of_batches(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield the rows of records, in a task."""
        import pyarrow as pa

        from slackwater.typed_changes import in_pieces

        envelope, wrap = self.envelope, self.wrap
        wrap = with_uuids(wrap, envelope.options.origin.stream_name) if self.has_uuid else wrap
        wrap = with_headers(wrap, envelope) if envelope.has_headers else wrap
        wrap = with_row_hashes(wrap) if self.has_row_hash else wrap
        columns = self.columns
        for batch in batches:
            for records in in_pieces(batch):
                rows = [
                    {
                        **dict(zip(columns.names, message, strict=False)),
                        "number": number,
                        **{name: record[name] for name in (*ORDER[:3], "low_watermark")},
                    }
                    for record in _records(records)
                    for number, message in enumerate(wrap(record))
                ]
                yield pa.RecordBatch.from_pylist(rows, columns)


def _records(batch: RecordBatch) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a batch; Spark gives timestamps in the session's time zone."""
    for record in batch.to_pylist():
        yield {**record, **{name: record[name].astimezone(UTC) for name in _TIMESTAMPS}}


def with_row_hashes(wrap: Wrap) -> Wrap:
    """Return a function that adds a hash of the table and of the key as Spanner sent it.

    A message's own key would have another hash with another envelope, format or schema.
    """

    def wrap_all(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        hashes = [crc32(f"{record['table_name']} {mod['keys']}".encode()) for mod in record["mods"]]
        return [(*row, hashes[mod_number]) for row, mod_number, _ in _by_mod(wrap, record)]

    return wrap_all


def with_uuids(wrap: Wrap, stream_name: str) -> Wrap:
    """Return a function that adds a change's UUID and the record's type of modification."""

    def wrap_all(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [
            (*row, change_id(stream_name, record, mod_number, part), record["mod_type"])
            for row, mod_number, part in _by_mod(wrap, record)
        ]

    return wrap_all


def with_headers(wrap: Wrap, envelope: Envelope) -> Wrap:
    """Return a function that adds an envelope's headers."""

    def wrap_all(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [
            (*row, header_list(envelope.headers(record, mod_number)))
            for row, mod_number, _ in _by_mod(wrap, record)
        ]

    return wrap_all


def header_list(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return headers as a value of the column HEADERS."""
    return [{"key": name, "value": value.encode()} for name, value in headers.items()]


def _by_mod(wrap: Wrap, record: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield a record's messages, each with the number of its mod, and its number among that one's.

    Each mod has as many messages as the others, or they share a single one.
    """
    rows = wrap(record)
    of_mod = max(1, len(rows) // max(1, len(record["mods"])))
    for number, row in enumerate(rows):
        yield (row, *divmod(number, of_mod))


def row_hash(table: Column, keys: Column) -> Column:
    """Return ROW_HASH as Spark computes it, of a table's name and a mod's keys."""
    from pyspark.sql import functions as F

    return F.crc32(F.concat_ws(" ", table, keys))
