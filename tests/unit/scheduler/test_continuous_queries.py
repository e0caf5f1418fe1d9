"""A task takes its records from the reader process, and asks Spanner for all that it has not."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.errors import UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners, RecordConsumer
from slackwater.reader.records import ChangeRecord, PartitionRecord
from slackwater.scheduler.audit import PartialTransactions, PartitionAudit
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.continuous import frames as frames_module
from slackwater.scheduler.continuous.continuous_queries import ContinuousQueries, forget
from slackwater.scheduler.continuous.followed_partition import Portion
from slackwater.scheduler.continuous.follower import Wanted
from slackwater.scheduler.continuous.frames import Frame, Request, frames
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.state.models import PartitionKey
from tests.simulation.continuous import STREAM
from tests.support.change_sources import QuietQuery
from tests.unit.scheduler.test_followed_partition import children, data, sequences, watermark

START_NS, END_NS = watermark(0), watermark(9)


def want(token: str) -> Wanted:
    return Wanted(PartitionKey("", token), START_NS)


class AskedQuery(QuietQuery):
    """A query at Spanner, which has one record."""

    is_cancelled = False

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        decoder.add_records(consumer, [data(9)])

    def cancel(self) -> None:
        self.is_cancelled = True


class Source:
    """Spanner."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        self.asked.append(token)
        return AskedQuery()

    def require_same_functions(self) -> None:
        pass


class Reader:
    """A reader process that has some partitions."""

    def __init__(self, portions: Mapping[str, Portion], frames_max: int | None = None) -> None:
        self.portions = {want(token): portion for token, portion in portions.items()}
        self.requests: list[Request] = []
        self.bytes_max: int | None = None
        self.starts = 0
        self._frames_max = frames_max

    def read(self, request: Request) -> Iterator[Frame]:
        self.requests.append(request)
        bytes_max = None if request.bytes_max is None else self.bytes_max
        for number, frame in enumerate(frames(request.wanted, self.portions, bytes_max)):
            if number == self._frames_max:
                raise EOFError
            yield frame

    def start_if_missing(self) -> None:
        self.starts += 1


class NoReader(Reader):
    def read(self, request: Request) -> Iterator[Frame]:
        raise ConnectionRefusedError


def portion(steps: Sequence[int], *others: ChangeRecord, columns: bool = True) -> Portion:
    records = [data(step, step) for step in steps]
    if columns:
        return Portion(tuple(data_columns([record]) for record in records), (), others)
    return Portion((), tuple(records), others)


def read(queries: ContinuousQueries, token: str) -> tuple[list[str], list[PartitionRecord], Query]:
    """Read a partition as a task does: its record_sequences, children, and the query."""
    delivered: list[str] = []

    def deliver(batch: pa.RecordBatch, owners: Owners) -> None:
        assert [name for name, _ in owners] == [token] * len(owners)
        delivered.extend(batch.column("record_sequence").to_pylist())

    cut = Cut(START_NS, END_NS)
    audit = PartitionAudit(token, cut, PartialTransactions())
    consumer = CutFilter(token, cut, audit)
    decoder = BatchDecoder(deliver)
    query = queries.query(token, START_NS, END_NS)
    query.run(decoder, consumer)
    decoder.deliver_remaining()
    return delivered, consumer.partition_records, query


def queries_of(
    reader: Reader, roots: Sequence[str] = ("p", "q")
) -> tuple[ContinuousQueries, Source]:
    source = Source()
    wanted = [want(token) for token in roots]
    return ContinuousQueries(source, reader, STREAM, wanted, END_NS), source


def test_one_request_is_enough_for_all_partitions_of_a_task() -> None:
    reader = Reader({"p": portion([1, 2], children(3)), "q": portion([4], columns=False)})
    queries, source = queries_of(reader)
    assert read(queries, "p")[:2] == (["1", "2"], [children(3)])
    delivered, announced, query = read(queries, "q")
    assert (delivered, announced) == (["4"], [])
    assert not query.queried_source
    assert query.watermark_ns == END_NS
    assert len(reader.requests) == 1
    assert source.asked == []


def test_what_the_reader_process_does_not_have_spanner_is_asked_for() -> None:
    queries, source = queries_of(Reader({"p": portion([1])}))
    assert read(queries, "p")[0] == ["1"]
    delivered, _, query = read(queries, "q")
    assert delivered == ["0"]
    assert query.queried_source
    assert source.asked == ["q"]


def test_without_a_reader_process_spanner_is_asked_and_one_is_started() -> None:
    reader = NoReader({})
    queries, source = queries_of(reader)
    assert read(queries, "p")[0] == read(queries, "q")[0] == ["0"]
    assert source.asked == ["p", "q"]
    assert reader.starts == 1


def test_children_are_asked_for_one_by_one() -> None:
    reader = Reader({"p": portion([1]), "child": portion([5])})
    queries, source = queries_of(reader, ["p"])
    read(queries, "p")
    assert read(queries, "child")[0] == ["5"]
    assert [len(request.wanted) for request in reader.requests] == [1, 1]
    assert source.asked == []


def test_what_is_too_much_for_one_answer_is_asked_for_again_as_it_is_read() -> None:
    reader = Reader({"p": portion([1, 2]), "q": portion([3, 4])})
    reader.bytes_max = 1
    queries, source = queries_of(reader)
    assert read(queries, "q")[0] == ["3", "4"]
    assert read(queries, "p")[0] == ["1", "2"]
    assert [len(request.wanted) for request in reader.requests] == [2, 1, 1]
    assert source.asked == []


def test_an_answer_that_breaks_off_for_many_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "FRAME_BYTES_MAX", 1)
    queries, source = queries_of(Reader({"p": portion([1, 2]), "q": portion([3])}, frames_max=1))
    assert read(queries, "p")[0] == ["0"]
    assert read(queries, "q")[0] == ["0"]
    assert source.asked == ["p", "q"]


def test_an_answer_that_breaks_off_after_its_first_records_fails_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames_module, "FRAME_BYTES_MAX", 1)
    queries, source = queries_of(Reader({"child": portion([1, 2])}, frames_max=1), roots=[])
    with pytest.raises(UnavailableError, match="in the middle of an answer"):
        read(queries, "child")
    assert source.asked == [], "it would give the first records again"


def test_a_query_that_is_cancelled_before_it_begins_is_cancelled_at_once() -> None:
    asked = AskedQuery()
    source = Source()
    source.query = lambda *_arguments: asked  # type: ignore[method-assign]
    queries = ContinuousQueries(source, NoReader({}), STREAM, [want("p")], END_NS)
    query = queries.query("p", START_NS, END_NS)
    query.cancel()
    query.run(BatchDecoder(lambda _batch, _owners: None), CutFilter("p", Cut(0, 1), None))
    assert asked.is_cancelled


def test_the_reader_process_is_told_that_what_it_holds_may_be_wrong() -> None:
    reader = Reader({})
    forget(reader, STREAM, END_NS)
    assert [request.is_suspect for request in reader.requests] == [True]
    forget(NoReader({}), STREAM, END_NS)


@st.composite
def portions(draw: st.DrawFn) -> Portion:
    in_columns = draw(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=3))
    loose = draw(st.lists(st.integers(0, 99), max_size=3))
    others = draw(st.lists(st.integers(0, 99), max_size=2))
    return Portion(
        tuple(data_columns([data(step, step) for step in steps]) for steps in in_columns),
        tuple(data(step, step) for step in loose),
        tuple(children(step) for step in others),
    )


@given(st.lists(portions(), max_size=4), st.integers(1, 2_000), st.none() | st.integers(1, 3_000))
def test_frames_hold_what_they_were_made_of(
    of_partitions: list[Portion], frame_bytes: int, bytes_max: int | None
) -> None:
    wanted = [want(f"p{number}") for number in range(len(of_partitions) + 1)]
    expected = dict(zip(wanted, of_partitions, strict=False))
    got: dict[int, tuple[list[str], list[ChangeRecord]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "FRAME_BYTES_MAX", frame_bytes)
        made = list(frames(wanted, expected, bytes_max))
    for frame in made:
        rows = frame.rows().column("record_sequence").to_pylist()
        for entry in frame.entries:
            records, others = got.setdefault(entry.position, ([], []))
            records += rows[: entry.rows]
            others += entry.others
            rows = rows[entry.rows :]
        assert rows == []
    left = set(made[-1].deferred)
    assert set(got) == set(range(len(of_partitions))) - left
    for position, (records, others) in got.items():
        portion = expected[wanted[position]]
        assert records == sequences(portion)
        assert tuple(others) == portion.others
    assert not left or bytes_max is not None
