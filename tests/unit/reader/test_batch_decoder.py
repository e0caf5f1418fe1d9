"""Decoding by column gives what decoding one by one gives, whatever the messages look like."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from google.protobuf.struct_pb2 import Value
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.decode import row_spans
from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.googlesql_columns import decode_columns
from slackwater.reader.decode.googlesql_records import DATA_CHANGE_FIELDS
from slackwater.reader.decode.postgresql_columns import decode_json_columns
from slackwater.reader.decode.protobuf_cursor import PADDING, Cursors, Flags
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.decode.result_layout import Layout, form_of, layout_of
from slackwater.reader.errors import DecodeError
from slackwater.reader.query import batch_decoder
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners, QueryStream
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)
from slackwater.reader.schema import DATA_SCHEMA
from tests.support.spanner_messages import (
    PartialResultSetPb,
    googlesql_metadata,
    googlesql_row,
    postgresql_metadata,
    postgresql_row,
)
from tests.unit.reader.test_records import RECORDS, cuts

HEAD = PartialResultSetPb(metadata=googlesql_metadata()).SerializeToString()
PG_HEAD = PartialResultSetPb(metadata=postgresql_metadata()).SerializeToString()


class Received:
    """A consumer that wants everything and keeps it."""

    is_done = False

    def __init__(self, token: str) -> None:
        self.token = token
        self.records: list[ChangeRecord] = []
        self.by_column = 0

    def take_rows(self, rows: Rows) -> Flags | None:
        self.by_column += rows.batch.num_rows
        assert np.asarray(rows.batch.column(0).cast(pa.int64())).tolist() == rows.commit_us.tolist()
        return None

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        self.records += [r for r in records if not isinstance(r, DataChangeRecord)]
        return [r for r in records if isinstance(r, DataChangeRecord)]


class Delivered:
    """What a decoder delivered, by partition."""

    def __init__(self) -> None:
        self.by_token: dict[str, list[pa.RecordBatch]] = {}

    def __call__(self, batch: pa.RecordBatch, owners: Owners) -> None:
        batch.validate(full=True)
        assert batch.num_rows == sum(count for _, count in owners)
        position = 0
        for token, count in owners:
            self.by_token.setdefault(token, []).append(batch.slice(position, count))
            position += count

    def rows(self, token: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = pa.Table.from_batches(
            self.by_token.get(token, []), DATA_SCHEMA
        ).to_pylist()
        return result


def decoded_together(streams: dict[str, list[bytes]]) -> tuple[Delivered, dict[str, Received]]:
    """All messages of some queries, in turn, through one decoder."""
    delivered = Delivered()
    together = BatchDecoder(delivered)
    consumers = {token: Received(token) for token in streams}
    opened = {token: QueryStream(consumers[token]) for token in streams}
    for number in range(max(map(len, streams.values()), default=0)):
        for token, messages in streams.items():
            if number < len(messages):
                together.add(opened[token], [messages[number]])
    together.flush()
    for one in opened.values():
        one.decoder.finish()
    together.deliver_remaining()
    return delivered, consumers


@pytest.fixture(autouse=True, scope="module")
def by_column_at_once() -> Iterator[None]:
    """Few messages, too, are decoded by column here, and now and then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_decoder, "_BY_COLUMN_BYTES_MIN", 0)
        patch.setattr(batch_decoder, "_PENDING_BYTES_MAX", 3_000)
        yield


def packed(rows: Sequence[Value], head: bytes, data: st.DataObject) -> list[bytes]:
    """Rows in messages of one to four; some values cut over messages, some resume tokens."""
    pieces: list[tuple[Value, bool]] = []
    for row in rows:
        cut = cuts(row, data) if data.draw(st.integers(0, 3)) == 0 else [row]
        pieces += [(piece, piece is not cut[-1]) for piece in cut]
    messages = [head]
    waiting: list[Value] = []
    for number, (piece, is_cut) in enumerate(pieces, 1):
        waiting.append(piece)
        if is_cut or number == len(pieces) or data.draw(st.booleans()):
            part = PartialResultSetPb(values=waiting, chunked_value=is_cut)
            part.resume_token = data.draw(st.sampled_from([b"", b"resume"]))
            part.last = number == len(pieces)
            messages.append(part.SerializeToString())
            waiting = []
    return messages


STREAMS = st.dictionaries(st.sampled_from("abc"), RECORDS, min_size=1)


SPACED = partial(postgresql_row, is_spaced=True)
ROWS = st.sampled_from([googlesql_row, postgresql_row, SPACED])


@given(STREAMS, ROWS, st.data())
def test_queries_decoded_together_give_what_each_alone_gives(
    streams: dict[str, list[ChangeRecord]], row: Any, data: st.DataObject
) -> None:
    head = HEAD if row is googlesql_row else PG_HEAD
    delivered, received = decoded_together(
        {
            token: packed([row(record) for record in records], head, data)
            for token, records in streams.items()
        }
    )
    for token, records in streams.items():
        alone = ChangeRecordDecoder()
        alone.feed(head)
        expected = [
            r
            for record in records
            for r in alone.feed(PartialResultSetPb(values=[row(record)]).SerializeToString())
        ]
        assert delivered.rows(token) == rows_of(expected)
        assert received[token].records == [
            r for r in expected if not isinstance(r, DataChangeRecord)
        ]


def usual(number: int, **fields: Any) -> DataChangeRecord:
    column = ColumnType("Id", '{"code":"INT64"}', True, 1)
    name = r'{"Name":"ü \"x\\\\\", [1]:"}'
    mods = (Mod(f'{{"Id":"{number}"}}', name, None), Mod('{"Id":"2"}', "{}", '{"A":[1.5,null]}'))
    return DataChangeRecord(
        1_769_850_000_000_000_000 + number * 1_000, f"t{number}", "00000000", True, "T",
        (column,), mods[: number % 3], "UPDATE", "NEW_ROW", 1, 1, "", False,
    )._replace(**fields)  # fmt: skip


@pytest.mark.parametrize("row", [googlesql_row, postgresql_row, SPACED])
@pytest.mark.parametrize("per_message", [1, 7, 500])
def test_what_is_usual_is_decoded_by_column(per_message: int, row: Any) -> None:
    """Otherwise the properties above would show the plain way twice."""
    records = [usual(i) for i in range(500)]
    rows = [row(record) for record in records]
    messages = [HEAD if row is googlesql_row else PG_HEAD] + [
        PartialResultSetPb(values=rows[i : i + per_message]).SerializeToString()
        for i in range(0, len(rows), per_message)
    ]
    delivered, received = decoded_together({"p": messages})
    assert received["p"].by_column == 500
    assert delivered.rows("p") == rows_of(records)


def test_a_value_that_was_begun_goes_on_in_a_message_that_looks_whole() -> None:
    row = googlesql_row(usual(1))
    begin = deepcopy(row)
    inner = begin
    while inner.list_value.values:
        del inner.list_value.values[1:]
        inner = inner.list_value.values[0]
    inner.string_value = ""
    messages = [
        HEAD,
        PartialResultSetPb(values=[begin], chunked_value=True).SerializeToString(),
        PartialResultSetPb(values=[row]).SerializeToString(),
    ]
    delivered = Delivered()
    decoder, stream = BatchDecoder(delivered), QueryStream(Received("p"))
    for message in messages:
        decoder.add(stream, [message])
        decoder.flush()
    stream.decoder.finish()
    decoder.deliver_remaining()
    assert delivered.rows("p") == rows_of([usual(1)])


@pytest.mark.parametrize("large", [0, 10**9])
def test_few_large_messages_and_many_small_ones_are_the_same(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_spans, "_LARGE_BYTES", large)
    records = [usual(i) for i in range(90)]
    rows = [googlesql_row(record) for record in records]
    rows[40:40] = [googlesql_row(HeartbeatRecord(5))]
    parts = [PartialResultSetPb(values=rows[i : i + 10]) for i in range(0, len(rows), 10)]
    layout = layout_of(googlesql_metadata())
    assert layout is not None
    result = decode_columns([part.SerializeToString() for part in parts], layout)
    assert result.fallback_messages == [4]
    assert result.batch.to_pylist() == rows_of(records[:40] + records[49:])
    assert result.message_of.tolist() == [i for i in range(10) if i != 4 for _ in range(10)][:81]


def test_records_with_many_mods_are_decoded() -> None:
    mods = tuple(Mod(f'{{"Id":"{i}"}}', "{}", None) for i in range(300))
    records = [usual(i, mods=mods if i % 50 == 7 else mods[: i % 20]) for i in range(200)]
    messages = [PartialResultSetPb(values=[googlesql_row(r)]).SerializeToString() for r in records]
    delivered, received = decoded_together({"p": [HEAD, *messages]})
    assert delivered.rows("p") == rows_of(records)
    assert received["p"].by_column > 100


@pytest.mark.parametrize("row", [googlesql_row, postgresql_row, SPACED])
def test_bytes_that_are_no_message_are_an_error_of_decoding(row: Any) -> None:
    good = PartialResultSetPb(values=[row(usual(2))]).SerializeToString()
    layout = layout_of(googlesql_metadata())
    assert layout is not None
    choose = random.Random(5)
    decoded = 0
    for _ in range(6 * settings().max_examples):
        broken = bytearray(good)
        broken[choose.randrange(len(broken))] ^= 1 << choose.randrange(8)
        three = [good, bytes(broken), good]
        is_json = row is not googlesql_row
        result = decode_json_columns(three) if is_json else decode_columns(three, layout)
        if 1 not in result.fallback_messages and result.batch.num_rows == 3:
            alone = ChangeRecordDecoder()
            alone.feed(PG_HEAD if is_json else HEAD)
            with contextlib.suppress(DecodeError, ValueError):
                expected = alone.feed(bytes(broken))
                assert result.batch.slice(1, 1).to_pylist() == rows_of(expected)
                decoded += 1
    assert decoded > settings().max_examples // 5


def test_records_of_many_tables_are_decoded_by_column() -> None:
    columns = [ColumnType(f"C{i}", '{"code":"INT64"}', True, i) for i in range(40)]
    records = [usual(i, column_types=tuple(columns[: i % 40])) for i in range(300)]
    parts = [PartialResultSetPb(values=[postgresql_row(record)]) for record in records]
    result = decode_json_columns([part.SerializeToString() for part in parts])
    assert not result.fallback_messages
    assert result.batch.to_pylist() == rows_of(records)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"keys":{"Id":"2"},', ""),
        ('"mods":[{', '"mods":[{},{'),
        ('"mods":[{', '"mods":[null,{'),
        ('"mods":[{', '"mods":[[],{'),
        ('"Name":"ü', r'"Name":"\u00fc'),
        ('"T"', r'"T\""'),
        ('"T"', "null"),
        ('"table_name"', '"another_name"'),
        ('"transaction_tag":""', '"transaction_tag":null'),
        ('"transaction_tag":"",', ""),
        ('"number_of_records_in_transaction":1', '"number_of_records_in_transaction":"1"'),
    ],
)
def test_an_unusual_json_record_is_read_as_it_is_alone(was: str, becomes: str) -> None:
    usual_row = postgresql_row(usual(2))
    changed = usual_row.string_value.replace(was, becomes)
    assert changed != usual_row.string_value
    odd = PartialResultSetPb(values=[Value(string_value=changed)]).SerializeToString()
    good = PartialResultSetPb(values=[usual_row]).SerializeToString()
    result = decode_json_columns([good, odd, good])
    if 1 in result.fallback_messages:
        assert result.batch.num_rows == 2
    else:
        alone = ChangeRecordDecoder()
        alone.feed(PG_HEAD)
        assert result.batch.slice(1, 1).to_pylist() == rows_of(alone.feed(odd))


def test_another_order_of_fields_is_followed_and_another_shape_is_not() -> None:
    names = ("a_new_field", *reversed(DATA_CHANGE_FIELDS))
    metadata = googlesql_metadata(names)
    layout = layout_of(metadata)
    assert layout is not None
    assert layout.field_names == names
    less = googlesql_metadata(DATA_CHANGE_FIELDS[1:])
    assert layout_of(less) is None
    assert layout_of(postgresql_metadata()) == Layout(is_json=True)
    usual = googlesql_metadata()
    assert form_of(HEAD) == (usual.SerializeToString(), layout_of(usual))
    assert [form_of(of) for of in (b"", HEAD[:5], b"\x0a", b"\x12\x00")] == [None] * 4


@given(st.lists(st.integers(0, 2**28 - 1), min_size=1, max_size=50))
def test_lengths_of_any_size_are_read(numbers: list[int]) -> None:
    encoded = [_VarintBytes(number) for number in numbers]
    begins = np.cumsum([0, *map(len, encoded)])
    buffer = np.frombuffer(b"".join(encoded) + bytes(PADDING), np.uint8)
    cursors = Cursors(buffer, begins[:-1].astype(np.int64))
    assert cursors.length().tolist() == numbers
    assert cursors.at.tolist() == begins[1:].tolist()
    assert cursors.is_good.all()


def test_a_length_that_is_too_long_leaves_its_row_out() -> None:
    encoded = _VarintBytes(2**28) + _VarintBytes(7)
    cursors = Cursors(np.frombuffer(encoded + bytes(PADDING), np.uint8), np.array([0, 5]))
    assert cursors.length()[1] == 7
    assert cursors.is_good.tolist() == [False, True]


def rows_of(records: Sequence[ChangeRecord]) -> list[dict[str, Any]]:
    data = [record for record in records if isinstance(record, DataChangeRecord)]
    result: list[dict[str, Any]] = data_columns(data).to_pylist()
    return result


def test_a_new_field_beside_a_json_record_is_not_taken_for_a_part_of_it() -> None:
    record = DataChangeRecord(
        1_000, "t", "0", True, "T", (), (), "INSERT", "NEW_ROW", 1, 1, "", False
    )
    row = postgresql_row(record).string_value
    for added in ('"a":["x"]', '"a":{"b":1}', '"a":1'):
        for text in (f"{row[:-1]},{added}}}", f"{{{added},{row[1:]}"):
            part = PartialResultSetPb(metadata=postgresql_metadata())
            part.values.add().string_value = text
            columns = decode_json_columns([part.SerializeToString()] * 20)
            assert len(columns.fallback_messages) == 20
