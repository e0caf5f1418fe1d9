"""The messages of an epoch's records, made with Spark: rows with table, key and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from slackwater.spark_sink.envelopes.change_id import change_id
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.java import map_in_arrow

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import Column, DataFrame

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
    changes: DataFrame, envelope: Envelope, *, has_row_hash: bool = False, has_uuid: bool = False
) -> DataFrame:
    """Return a row for each message: table_name, key, value, low_watermark, the columns of ORDER.

    Args:
        changes: rows of the output's contract.
        envelope: of the messages.
        has_row_hash: the column ROW_HASH is added.
        has_uuid: the columns uuid, of change_id(), and mod_type are added.
    """

    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(m.table, m.key, m.value) for m in envelope.messages(record)]

    return rows_of_messages(
        changes,
        envelope,
        wrap,
        ("string", "string"),
        has_row_hash=has_row_hash,
        has_uuid=has_uuid,
    )


def rows_of_messages(
    changes: DataFrame,
    envelope: Envelope,
    wrap: Wrap,
    kinds: tuple[str, str],
    *,
    has_row_hash: bool = False,
    has_uuid: bool = False,
) -> DataFrame:
    """Return such rows for any way to write keys and values.

    Args:
        changes: rows of the output's contract, and other columns that wrap needs.
        envelope: of the messages. If it has headers, the column HEADERS is added.
        wrap: makes the messages of a record.
        kinds: Spark's types of keys and of values.
        has_row_hash, has_uuid: see messages().
    """
    # With Arrow, which the settings do without.
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from slackwater.arrow_schema import arrow_schema_of
    from slackwater.typed_changes import in_pieces

    more = " uuid string, mod_type string," if has_uuid else ""
    more += f" {HEADERS_COLUMN}," if envelope.has_headers else ""
    more += f" {ROW_HASH} long," if has_row_hash else ""
    schema = StructType.fromDDL(
        f"table_name string, key {kinds[0]}, value {kinds[1]},{more} number int,"
        " commit_timestamp timestamp_ltz, server_transaction_id string, record_sequence string,"
        " low_watermark timestamp_ltz"
    )
    assert isinstance(schema, StructType)  # noqa: S101 - it declares columns
    columns = arrow_schema_of(schema)
    wrap_all = with_uuids(wrap, envelope.options.origin.stream_name) if has_uuid else wrap
    wrap_all = with_headers(wrap_all, envelope) if envelope.has_headers else wrap_all
    wrap_all = with_row_hashes(wrap_all) if has_row_hash else wrap_all

    def of_batches(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            for records in in_pieces(batch):
                rows = [row for record in _records(records) for row in of_record(record)]
                yield pa.RecordBatch.from_pylist(rows, columns)

    def of_record(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        place = {name: record[name] for name in (*ORDER[:3], "low_watermark")}
        for number, message in enumerate(wrap_all(record)):
            of_message = dict(zip(columns.names, message, strict=False))
            yield {**of_message, "number": number, **place}

    return map_in_arrow(changes, of_batches, schema)


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
