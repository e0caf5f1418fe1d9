"""Changes of a change stream decoded by column are those that the generated classes give."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pytest
from google.api_core.exceptions import ServiceUnavailable
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.bigtable import change_rows, partition_read
from slackwater.reader.bigtable.change_rows import rows_of
from slackwater.reader.bigtable.changes import SCHEMA, Changes
from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import Read, reads_of, starting_at
from slackwater.reader.bigtable.row_range import WHOLE_TABLE
from slackwater.reader.bigtable.service import BigtableService, ChangeMessage
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.errors import DecodeError
from slackwater.reader.query import reopened_query
from tests.support.calls import IteratedCall

END_US = 1_000_000_000
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["", "info", "stätistik"])
QUALIFIERS = st.sampled_from([b"", b"name", b"\xff\n\x0a"])
CHANGE_TAG, UNKNOWN = b"\x0a", b"\x7a\x03abc"
CELLS = st.fixed_dictionaries(
    {
        "set_cell": st.fixed_dictionaries(
            {
                "family_name": NAMES,
                "column_qualifier": QUALIFIERS,
                "timestamp_micros": INT64,
                "value": st.binary(max_size=200),
            }
        )
    },
    optional={"timestamp_origin": st.integers(0, 2)},
) | st.fixed_dictionaries(
    {
        "delete_from_column": st.fixed_dictionaries(
            {"family_name": NAMES, "column_qualifier": QUALIFIERS},
            optional={
                "time_range": st.fixed_dictionaries(
                    {}, optional={"start_timestamp_micros": INT64, "end_timestamp_micros": INT64}
                )
            },
        )
    }
)
FAMILIES = st.fixed_dictionaries({"family_name": NAMES})
USUAL: st.SearchStrategy[dict[str, Any]] = st.one_of(
    CELLS,
    CELLS,
    st.fixed_dictionaries({"delete_from_family": FAMILIES}),
    st.just({"delete_from_row": {}}),
)
AGGREGATES = st.fixed_dictionaries(
    {
        "family_name": NAMES,
        "column_qualifier": st.fixed_dictionaries({"raw_value": QUALIFIERS}),
        "timestamp": st.fixed_dictionaries({"raw_timestamp_micros": INT64}),
        "input": st.fixed_dictionaries({"int_value": INT64})
        | st.fixed_dictionaries({"raw_value": st.binary(max_size=5)}),
    }
)
AGGREGATED = st.one_of(
    st.fixed_dictionaries({"add_to_cell": AGGREGATES}),
    st.fixed_dictionaries({"merge_to_cell": AGGREGATES}),
)
TIMES = st.fixed_dictionaries(
    {"seconds": st.integers(0, 2**33), "nanos": st.integers(0, 999_999_999)}
)
ODD_TIMES = st.fixed_dictionaries({"seconds": st.integers(-(2**40), 2**40), "nanos": INT32})


def chunk(mutation: dict[str, Any], info: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"mutation": mutation} | ({} if info is None else {"chunk_info": info})


@st.composite
def value_parts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A large value in several parts; now and then one is missing or the size is wrong."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=3))
    is_wrong = draw(st.integers(0, 19)) == 19
    size, offset, chunks = sum(map(len, parts)) + is_wrong, 0, list[dict[str, Any]]()
    for i, part in enumerate(parts):
        cell: dict[str, Any] = {"value": part}
        if i == 0:
            cell |= {"family_name": draw(NAMES), "timestamp_micros": draw(INT64)}
        is_last = i == len(parts) - 1 and not (is_wrong and draw(st.booleans()))
        info = {"chunked_value_size": size, "chunked_value_offset": offset, "last_chunk": is_last}
        chunks.append(chunk({"set_cell": cell}, info))
        offset += len(part)
    return chunks


@st.composite
def changes(draw: st.DrawFn) -> list[bytes]:
    """The messages of a change: one, as a rule."""
    is_usual = draw(st.integers(0, 3)) > 0
    is_odd = draw(st.integers(0, 19)) == 19
    parts = USUAL.map(lambda m: [chunk(m)])
    if not is_usual:
        parts = st.one_of(parts, AGGREGATED.map(lambda m: [chunk(m)]), value_parts())
    if is_odd:
        parts |= st.sampled_from([[chunk({})]])
    chunks = [each for some in draw(st.lists(parts, max_size=3)) for each in some]
    times = ODD_TIMES if is_odd else TIMES
    first = {
        "type_": draw(st.sampled_from([0, 1, 2, 3, 300] if is_odd else [1, 2, 1, 2, 7])),
        "source_cluster_id": draw(NAMES),
        "row_key": draw(st.binary(max_size=5)),
        "commit_timestamp": draw(times),
        "tiebreaker": draw(INT32),
    }
    last = {
        "done": not is_odd or draw(st.booleans()),
        "token": draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)),
        "estimated_low_watermark": draw(times),
    }
    cut = len(chunks) if is_usual else draw(st.integers(0, len(chunks)))
    if cut == len(chunks):
        return [data_change(first | {"chunks": chunks} | last)]
    rest = {"type_": 1 if is_odd else 3, "chunks": chunks[cut:]} | last
    return [data_change(first | {"chunks": chunks[:cut]}), data_change(rest)]


def data_change(fields: dict[str, Any]) -> bytes:
    return bytes(ChangeMessage(data_change=fields).SerializeToString())


@st.composite
def disturbed(draw: st.DrawFn, message: bytes) -> bytes:
    """A message with a byte that is wrong, more, or missing; in two pieces; with unknown fields."""
    whole = bytearray(message)
    at = draw(st.integers(0, len(whole) - 1))
    match draw(st.sampled_from(["change", "add", "remove", "cut", "unknown", "inside", "twice"])):
        case "change":
            whole[at] = draw(st.integers(0, 255))
        case "add":
            whole.insert(at, draw(st.integers(0, 255)))
        case "remove":
            del whole[at]
        case "cut":
            del whole[at:]
        case "unknown":
            whole += UNKNOWN
        case "inside":
            inner = ChangeMessage.FromString(message).data_change.SerializeToString() + UNKNOWN
            whole = bytearray(CHANGE_TAG + varint(len(inner)) + inner)
        case "twice":
            whole += message if draw(st.booleans()) else heartbeat("beat", 1)
    return bytes(whole)


def varint(number: int) -> bytes:
    head = b""
    while number > 0x7F:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def heartbeat(token: str, seconds: int) -> bytes:
    message = ChangeMessage()
    message.heartbeat.continuation_token.token = token
    message.heartbeat.estimated_low_watermark.seconds = seconds
    return bytes(message.SerializeToString())


class OddError(Exception):
    """A message that Bigtable does not send."""


def require(condition: bool) -> None:
    if not condition:
        raise OddError


def expected(messages: Sequence[bytes], label: str) -> list[dict[str, Any]]:
    """The rows of a partition's messages, as the generated classes have their fields."""
    rows, first, entries = list[dict[str, Any]](), None, list[dict[str, Any]]()
    value = None
    for message in messages:
        part = ChangeMessage.FromString(message).data_change
        require((part.type_ == 3) == (first is not None))
        first = part if first is None else first
        for each in part.chunks:
            if value is None:
                entries.append(entry(each.mutation))
            if each.HasField("chunk_info"):
                value = (value or b"") + each.mutation.set_cell.value
                if each.chunk_info.last_chunk:
                    require(len(value) == each.chunk_info.chunked_value_size)
                    require(entries[-1]["kind"] == "SET_CELL")
                    entries[-1]["value"], value = value, None
            else:
                require(value is None)
        if part.done:
            require(value is None and 0 < first.type_ < 128)
            rows.append(
                {
                    "commit_timestamp": microseconds(first.commit_timestamp),
                    "row_key": first.row_key,
                    "row_key_text": text_or_none(first.row_key),
                    "type": {1: "USER", 2: "GARBAGE_COLLECTION"}.get(first.type_, str(first.type_)),
                    "source_cluster_id": first.source_cluster_id or None,
                    "tiebreaker": first.tiebreaker,
                    "entries": entries,
                    "estimated_low_watermark": microseconds(part.estimated_low_watermark),
                    "partition": label,
                    "low_watermark": END_US,
                }
            )
            first, entries = None, []
    return rows


def entry(mutation: Any) -> dict[str, Any]:
    kind = mutation.WhichOneof("mutation")
    require(kind is not None)
    cell = getattr(mutation, kind)
    names = {"delete_from_column": "DELETE_CELLS", "delete_from_family": "DELETE_FAMILY"}
    names["delete_from_row"] = "DELETE_ROW"
    micros, end, value, qualifier = None, None, None, None
    if kind == "set_cell":
        qualifier, micros, value = cell.column_qualifier, cell.timestamp_micros, cell.value
    elif kind == "delete_from_column":
        qualifier, micros = cell.column_qualifier, cell.time_range.start_timestamp_micros
        end = cell.time_range.end_timestamp_micros or None
    elif kind.endswith("to_cell"):
        qualifier, micros = cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros
        number, value = cell.input.int_value, cell.input.raw_value
        if cell.input.HasField("int_value"):
            value = number.to_bytes(8, "big", signed=True)
    return {
        "kind": names.get(kind, kind.upper()),
        "family": "" if kind == "delete_from_row" else cell.family_name,
        "qualifier": qualifier,
        "timestamp_micros": micros,
        "end_timestamp_micros": end,
        "value": value,
    }


def microseconds(time: Any) -> int:
    require(0 <= time.seconds < 2**35 and 0 <= time.nanos < 10**9)
    return int(time.seconds * 1_000_000 + time.nanos // 1_000)


def text_or_none(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, with their times as numbers: Python's reach less far."""
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    numbers = pa.schema(
        [(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in SCHEMA]
    )
    rows: list[dict[str, Any]] = pa.Table.from_batches([batch]).cast(numbers).to_pylist()
    return rows


def whole(messages: Sequence[bytes]) -> list[bytes]:
    """The messages up to the last one that ends a change, as far as they can be parsed."""
    for count in range(len(messages), 0, -1):
        try:
            if ChangeMessage.FromString(messages[count - 1]).data_change.done:
                return list(messages[:count])
        except Exception:  # noqa: BLE001 - protobuf's own, which it does not promise to keep
            continue
    return []


MESSAGES = st.one_of(
    changes(),
    changes(),
    changes(),
    changes().flatmap(lambda messages: disturbed(messages[0])).map(lambda message: [message]),
)


@settings(max_examples=6 * settings().max_examples, deadline=None)
@given(
    st.lists(st.lists(MESSAGES, max_size=5), min_size=1, max_size=3),
    st.sampled_from([1, 1_000]),
)
def test_rows_are_those_of_the_generated_classes(
    groups: list[list[list[bytes]]], in_step_min: int
) -> None:
    parts = [whole(list(chain.from_iterable(group))) for group in groups]
    labels = [f"partition {i}" for i in range(len(parts))]
    wanted: list[dict[str, Any]] | None
    try:
        wanted = [row for part in zip(parts, labels, strict=True) for row in expected(*part)]
    except Exception:  # noqa: BLE001 - protobuf's own, or OddError
        wanted = None
    given_parts = [Changes(label, part, 1) for part, label in zip(parts, labels, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_rows, "_IN_STEP_MIN", in_step_min)
        if wanted is None:
            with pytest.raises(Exception, match=r"(?s).*"):
                rows_of(given_parts, END_US)
        else:
            assert as_rows(rows_of(given_parts, END_US)) == wanted


def usual(number: int, cells: int = 1) -> bytes:
    mutations: list[dict[str, Any]] = [
        {"set_cell": {"family_name": "info", "timestamp_micros": number, "value": b"v" * number}},
        {"delete_from_column": {"family_name": "info", "time_range": {"end_timestamp_micros": 1}}},
        {"set_cell": {"column_qualifier": b"q"}, "timestamp_origin": 2},
        {"delete_from_family": {"family_name": "other"}},
    ]
    return data_change(
        {
            "type_": 1 + number % 2,
            "source_cluster_id": "" if number % 2 else "cluster",
            "row_key": b"key%d" % number,
            "commit_timestamp": {"seconds": number},
            "tiebreaker": number * (-1) ** number,
            "chunks": [chunk(mutations[(number + i) % 4]) for i in range(number % 5 * cells)],
            "done": True,
            "token": f"token {number}",
            "estimated_low_watermark": {"seconds": number, "nanos": 1_000},
        }
    )


def test_usual_changes_are_never_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_rows, "assembled", None)
    messages = [usual(number, cells=100 if number == 104 else 1) for number in range(1, 200)]
    assert as_rows(rows_of([Changes("p", messages, 1)], END_US)) == expected(messages, "p")


def test_a_change_that_begins_within_another_is_refused() -> None:
    first = data_change({"type_": 1, "row_key": b"key"})
    with pytest.raises(DecodeError, match="where its next message is due"):
        rows_of([Changes("p", [usual(1), first, usual(2)], 1)], END_US)


def test_a_mutation_that_is_not_known_is_refused_with_a_hint() -> None:
    with pytest.raises(DecodeError, match="newer version"):
        rows_of([Changes("p", [data_change(WHOLE | {"chunks": [chunk({})]})], 1)], END_US)


WHOLE = {"type_": 1, "row_key": b"key", "done": True, "token": "token"}
BREAK = b"break"
CLOSE = ChangeMessage(close_stream={"status": {}}).SerializeToString()


class Scripted:
    """A service whose calls send what a script says, until it breaks them or the script ends."""

    is_closed = False
    table = BigtableTable("project", "instance", "table")

    def __init__(self, script: Sequence[bytes]) -> None:
        self.asked: list[str | None] = []
        self._script = iter([*script, CLOSE])

    def read(self, read: Read, token: str | None, end_us: int | None, heartbeat_ms: int) -> Any:
        del read, end_us, heartbeat_ms
        self.asked.append(token)
        return IteratedCall(self._messages(), lambda: None)

    def _messages(self) -> Iterator[bytes]:
        for message in self._script:
            if message == BREAK:
                raise ServiceUnavailable("broken")
            yield message


@st.composite
def scripts(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], list[str | None]]:
    """Messages with breaks, the row keys of the changes that come whole, and the tokens asked."""
    script, keys, asked, token = list[bytes](), list[bytes](), list[str | None]([None]), None
    steps = draw(st.lists(st.sampled_from(["one", "two", "half", "beat", "break"]), max_size=30))
    for number, step in enumerate(steps):
        key, rest = b"%d" % number, {"done": True, "token": f"{number}"}
        first = {"type_": 1, "row_key": key, "chunks": [chunk({"delete_from_row": {}})]}
        if step == "one":
            script.append(data_change(first | rest))
        elif step in {"two", "half"}:
            script.append(data_change(first))
            script.append(data_change({"type_": 3} | rest) if step == "two" else BREAK)
        else:
            script.append(BREAK if step == "break" else heartbeat(f"{number}", number))
        if step in {"one", "two"}:
            keys.append(key)
        if step in {"one", "two", "beat"}:
            token = f"{number}"
        if script[-1] == BREAK:
            asked.append(token)
    return script, keys, asked


@settings(deadline=None)
@given(scripts(), st.sampled_from([0, 100, 10**6]))
def test_a_read_that_breaks_goes_on_behind_the_last_whole_change(
    scripted: tuple[list[bytes], list[bytes], list[str | None]], portion_bytes: int
) -> None:
    script, keys, asked = scripted
    service, rows = Scripted(script), list[dict[str, Any]]()
    [read] = reads_of(starting_at([WHOLE_TABLE], 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reopened_query, "_WAIT", lambda state: 0.0)
        patch.setattr(partition_read, "ATTEMPTS_MAX", 100)
        patch.setattr(partition_read, "_PORTION_BYTES", portion_bytes)

        def deliver(changes: Changes) -> None:
            rows.extend(as_rows(rows_of([changes], END_US)))

        PartitionRead(cast(BigtableService, service), read, END_US, 10**6, deliver).run()
    assert [row["row_key"] for row in rows] == keys
    assert service.asked == asked
