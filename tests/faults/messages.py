"""Messages with new, moved, renamed and missing fields, wrong values and broken bytes, decoded.

`python -m tests.faults.messages --messages 50000` decodes so many, in both dialects and in both
ways, one by one and by column. Each is decoded right or refused with a DecodeError. A test runs the
first few hundred.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final
from unittest.mock import patch

import orjson
import pyarrow as pa

from slackwater.reader.change_stream import Dialect
from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.protobuf_cursor import Flags
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import DecodeError, ReaderError
from slackwater.reader.query.batch_decoder import BatchDecoder, QueryStream
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)
from tests.faults.message_forms import (
    DOCUMENTED,
    FLAG,
    INT,
    JSON,
    NULLABLE,
    TEXT,
    TEXTS,
    TOP,
    Form,
    Struct,
    Wrong,
    any_form,
    googlesql_messages,
    postgresql_messages,
    structs_of,
    tree_of,
    usual_form,
    with_value,
)
from tests.support.programs import parsed_options

WRITERS: Final[dict[Dialect, Callable[[Form, Sequence[Struct]], list[bytes]]]] = {
    Dialect.GOOGLE_STANDARD_SQL: googlesql_messages,
    Dialect.POSTGRESQL: postgresql_messages,
}
_WORDS: Final = ("a", "Orders", "{}[],:", "ümläut ☂", "keys", "],", 'quote " and \\')
# Which kinds of value there are on the wire; the documented one is not wrong.
_GOOGLESQL_VALUES: Final[dict[str, Any]] = {
    "null": None,
    "bool": True,
    "number": 5.5,
    "string": "?",
    "list": [],
}
_JSON_VALUES: Final[dict[str, Any]] = {
    "null": None,
    "bool": True,
    "int": 7,
    "number": 1.5,
    "string": "?",
    "list": [],
    "object": {},
}
Decoded = list[Any] | None
# How many rows were really decoded by column, and not left to the other way.
BY_COLUMN: Final = Counter[str]()


def any_record(choose: random.Random) -> ChangeRecord:
    """Choose a record."""
    time_ns = choose.randrange(10**15) * 1_000
    kind = choose.random()
    if kind < 0.1:
        return HeartbeatRecord(time_ns)
    if kind < 0.25:
        children = tuple(
            ChildPartition(f"token {i}", frozenset(f"p{j}" for j in range(choose.randint(0, 2))))
            for i in range(choose.randint(0, 3))
        )
        return ChildPartitionsRecord(time_ns, str(choose.randrange(9)), children)
    columns = tuple(
        ColumnType(_word(choose), _json(choose), choose.random() < 0.5, i + 1)
        for i in range(choose.randint(0, 3))
    )
    mods = tuple(
        Mod(*(None if choose.random() < 0.1 else _json(choose) for _ in range(3)))
        for _ in range(choose.randint(0, 3))
    )
    return DataChangeRecord(
        time_ns,
        _word(choose),
        _word(choose),
        choose.random() < 0.5,
        _word(choose),
        columns,
        mods,
        _word(choose),
        _word(choose),
        choose.randint(1, 9),
        choose.randint(1, 9),
        _word(choose),
        choose.random() < 0.5,
    )


def _word(choose: random.Random) -> str:
    return "" if choose.random() < 0.1 else choose.choice(_WORDS[: choose.choice((2, 6, 7))])


def _json(choose: random.Random) -> str:
    values = (None, True, "x", 12, 1.25, _word(choose), [1, None], {"code": "STRING"})
    names = choose.sample(_WORDS, choose.randint(0, 3))
    return orjson.dumps({name: choose.choice(values) for name in names}).decode()


def by_record(messages: Sequence[bytes]) -> list[Any]:
    """Decode one by one; data change records as rows, others as they are."""
    decoder = ChangeRecordDecoder()
    records = [record for message in messages for record in decoder.feed(message)]
    decoder.finish()
    return _normal(records)


def _normal(records: Sequence[ChangeRecord]) -> list[Any]:
    data = [record for record in records if isinstance(record, DataChangeRecord)]
    others = [record for record in records if not isinstance(record, DataChangeRecord)]
    return [*data_columns(data).to_pylist(), *others]


class _Everything:
    """A consumer that wants everything."""

    token = "p"
    is_done = False

    def __init__(self) -> None:
        self.others: list[ChangeRecord] = []

    def take_rows(self, rows: Rows) -> Flags | None:
        BY_COLUMN["rows"] += rows.batch.num_rows
        return None

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        self.others += [r for r in records if not isinstance(r, DataChangeRecord)]
        return [record for record in records if isinstance(record, DataChangeRecord)]


def by_column(messages: Sequence[bytes]) -> list[Any]:
    """Decode as a task does, however few the messages are."""
    delivered: list[pa.RecordBatch] = []
    decoder = BatchDecoder(lambda batch, owners: delivered.append(batch))
    consumer = _Everything()
    stream = QueryStream(consumer)
    with patch("slackwater.reader.query.batch_decoder._BY_COLUMN_BYTES_MIN", 0):
        decoder.add(stream, list(messages))
        decoder.flush()
    stream.decoder.finish()
    decoder.deliver_remaining()
    return [*(row for batch in delivered for row in batch.to_pylist()), *consumer.others]


def decoded(read: Callable[[Sequence[bytes]], list[Any]], messages: Sequence[bytes]) -> Decoded:
    """Return the decoded rows; None for a clear refusal.

    Raises:
        Exception: any other error, which is a defect.
    """
    try:
        return read(messages)
    except DecodeError:
        return None


def check_forms(choose: random.Random, seen: Counter[str]) -> None:
    """Check messages in a form with fields added, moved, renamed and left out.

    Raises:
        AssertionError: a message was decoded wrong, or refused without reason.
    """
    form = any_form(choose)
    records = [any_record(choose) for _ in range(choose.randint(1, 3))]
    trees = [tree_of(record) for record in records]
    for dialect, write in WRITERS.items():
        messages = write(form, trees)
        expected = _expected(dialect, form, records, trees)
        seen["refused" if expected is None else "decoded"] += 2 * len(messages)
        for read in (by_record, by_column):
            result = decoded(read, messages)
            assert result == expected, f"{dialect} {read.__name__} {form}: {result} {expected}"


def _expected(
    dialect: Dialect, form: Form, records: Sequence[ChangeRecord], trees: Sequence[Struct]
) -> Decoded:
    if form.lost is None:
        return _normal(records)
    if dialect is Dialect.GOOGLE_STANDARD_SQL:
        # Its metadata shows the loss, whatever the rows hold.
        return None
    path, name = form.lost
    has_it = [s for tree in trees for s in structs_of(tree) if s.path == path and name in s.values]
    if has_it and form.is_loss_seen_in_json:
        return None
    return _normal([_without(record, path, name) for record in records])


def _without(record: ChangeRecord, path: str, name: str) -> ChangeRecord:
    """Return a record without a field that PostgreSQL may leave out."""
    if not isinstance(record, DataChangeRecord):
        return record
    match path, name:
        case "mods", "new_values":
            return record._replace(mods=tuple(m._replace(new_values=None) for m in record.mods))
        case "mods", "old_values":
            return record._replace(mods=tuple(m._replace(old_values=None) for m in record.mods))
        case "data_change_record", "transaction_tag":
            return record._replace(transaction_tag="")
        case "data_change_record", "is_system_transaction":
            return record._replace(is_system_transaction=False)
    return record


def check_wrong_values(choose: random.Random, seen: Counter[str]) -> None:
    """Check messages in which a value of another kind stands in the place of a documented one.

    Raises:
        AssertionError: a message was not refused, or wrongly.
    """
    record = any_record(choose)
    tree = tree_of(record)
    struct = choose.choice(list(structs_of(tree)))
    name = choose.choice(sorted(struct.values))
    holds = DOCUMENTED[struct.path][name]
    wrong = Wrong(
        choose.choice(_wrong_values(_GOOGLESQL_VALUES, _googlesql_kinds(struct.path, name))),
        choose.choice(_wrong_values(_JSON_VALUES, _json_kinds(struct.path, name))),
    )
    changed = with_value(tree, struct, name, wrong)
    is_nullable = (struct.path, name) in NULLABLE
    for dialect, write in WRITERS.items():
        value = wrong.googlesql if dialect is Dialect.GOOGLE_STANDARD_SQL else wrong.postgresql
        # NULL in the place of a whole record is a row without a record.
        is_refused = value is not None or not is_nullable
        messages = write(usual_form(), [changed])
        seen["wrong value"] += 2
        results = [decoded(read, messages) for read in (by_record, by_column)]
        assert results[0] == results[1], f"{dialect} {struct.path} {name} {value}: {results}"
        assert is_refused is (results[0] is None), f"{dialect} {struct.path} {name} {value} {holds}"


def _googlesql_kinds(path: str, name: str) -> set[str]:
    holds = DOCUMENTED[path][name]
    if holds in (*DOCUMENTED, TEXTS):
        return {"list"}
    return {"bool"} if holds == FLAG else {"string"}


def _json_kinds(path: str, name: str) -> set[str]:
    holds = DOCUMENTED[path][name]
    if path == TOP or holds == JSON:
        return {"object"}
    if holds in (*DOCUMENTED, TEXTS):
        return {"list"}
    if (path, name) == ("child_partitions_record", "record_sequence"):
        # A number is taken as well.
        return {"string", "int"}
    return {FLAG: {"bool"}, INT: {"int"}, TEXT: {"string"}}.get(holds, {"string"})


def _wrong_values(values: dict[str, Any], right: set[str]) -> list[Any]:
    return [value for kind, value in values.items() if kind not in right]


def check_bytes(choose: random.Random, seen: Counter[str]) -> None:
    """Check messages that are cut off or have some other bytes.

    What they then say can't be known; but both ways must read the same from them. Only a text of
    JSON with other bytes may be refused by one of them: by column it is cut out, and not parsed.

    Raises:
        AssertionError: the two ways differ.
    """
    is_cut = choose.random() < 0.4
    trees = [tree_of(any_record(choose)) for _ in range(choose.randint(1, 3))]
    for dialect, write in WRITERS.items():
        messages = write(usual_form(), trees)
        number = choose.randrange(len(messages))
        broken = bytearray(messages[number])
        if is_cut:
            del broken[choose.randrange(len(broken)) :]
        else:
            for _ in range(choose.randint(1, 3)):
                broken[choose.randrange(len(broken))] = choose.randrange(256)
        messages[number] = bytes(broken)
        first, second = (_whatever(read, messages) for read in (by_record, by_column))
        seen["broken bytes"] += 2 * len(messages)
        may_differ = dialect is Dialect.POSTGRESQL and not is_cut and first is None
        assert first == second or may_differ, f"{dialect} {messages}: {first} {second}"


def _whatever(read: Callable[[Sequence[bytes]], list[Any]], messages: Sequence[bytes]) -> Decoded:
    try:
        return read(messages)
    except ReaderError:
        return None


CHECKS: Final = (check_forms, check_forms, check_wrong_values, check_bytes)


def run(seed: int, seen: Counter[str]) -> None:
    """Check the messages of a seed, and count them."""
    CHECKS[seed % len(CHECKS)](random.Random(seed), seen)


def main() -> int:
    """Decode as many messages as asked; 1 if any was decoded wrong."""
    options = parsed_options(__doc__, messages=50_000, first=0)
    seen: Counter[str] = Counter()
    failed = []
    began, seed = time.monotonic(), options.first
    while seen.total() < options.messages:
        try:
            run(seed, seen)
        except Exception as error:  # noqa: BLE001 - any other error is a defect, too
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__} {str(error)[:1_000]}", flush=True)
        seed += 1
    print(
        f"{seen.total()} messages of {seed - options.first} seeds in"
        f" {time.monotonic() - began:.0f} s, {len(failed)} wrong: {dict(seen)},"
        f" {BY_COLUMN['rows']} rows by column"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
