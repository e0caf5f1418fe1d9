"""The watermark log: no line lost or changed, whoever wakes up when; and few files for ever."""

import json
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.spark_sink.output.object_store import ObjectFiles
from slackwater.spark_sink.output.small_files import LocalFiles
from slackwater.spark_sink.output.watermark_lines import (
    LogFile,
    LogLine,
    covers,
    merge_lines,
    parse_file_name,
    parse_lines,
)
from slackwater.spark_sink.output.watermark_log import LogWriter, earliest_line, latest_line
from tests.support.object_stores import nothing, s3

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
FILES_IN_ONE = 3


def at(epoch: int) -> datetime:
    return START + timedelta(seconds=epoch)


def line(epoch: int, *, records: int = 1, writer: str = "one") -> LogLine:
    """Return an epoch's line; committed_at tells who wrote it."""
    fields = {
        "pipeline": "orders",
        "epoch": epoch,
        "low_watermark": f"{at(epoch):%Y-%m-%dT%H:%M:%S.%f}Z",
        "records": records,
        "committed_at": writer,
    }
    return LogLine(at(epoch), json.dumps(fields))


class SteppedFiles(LocalFiles):
    """A folder that calls a hook before each operation."""

    def __init__(self, folder: Path, hook: Callable[[], None]) -> None:
        super().__init__(folder)
        self._hook = hook

    def names(self, after: str = "") -> list[str]:
        self._hook()
        return super().names(after)

    def read(self, name: str) -> str | None:
        self._hook()
        return super().read(name)

    def create(self, name: str, text: str, *, is_durable: bool = False) -> str | None:
        self._hook()
        return super().create(name, text, is_durable=is_durable)

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:
        for name in names:
            self._hook()
            super().remove([name])


def add_all(writer: LogWriter, lines: Iterable[LogLine]) -> None:
    for one in lines:
        writer.add(one)
        writer.merge()


def all_lines(folder: Path) -> list[LogLine]:
    files = LocalFiles(folder)
    return [one for name in files.names() for one in parse_lines(files.read(name) or "")]


class StoppedError(Exception):
    """The process was killed at this step."""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_former_owner_that_wakes_at_any_step_removes_and_changes_no_line(
    tmp_path: Path, is_killed: bool
) -> None:
    frozen_at, has_frozen = 0, True
    while has_frozen:
        has_frozen = False
        folder, steps = tmp_path / str(frozen_at), 0
        after: list[LogLine] = []

        def take_over() -> None:
            nonlocal steps, has_frozen
            steps += 1
            if steps == frozen_at + 1:  # noqa: B023
                has_frozen = True
                written = max((one.fields["epoch"] for one in all_lines(folder)), default=-1)  # noqa: B023
                successor = LogWriter(LocalFiles(folder), 2)  # noqa: B023
                epochs = range(max(written, 0), written + 12)
                add_all(successor, (line(epoch, writer="two") for epoch in epochs))
                after.extend(all_lines(folder))  # noqa: B023
                if is_killed:
                    raise StoppedError

        former = LogWriter(SteppedFiles(folder, take_over), 2)
        try:
            for epoch in range(10):
                if not has_frozen:
                    add_all(former, [line(epoch)])
        except StoppedError:
            pass
        now = all_lines(folder)
        if after:
            assert {one.text for one in after} <= {one.text for one in now}, frozen_at
            latest = latest_line(LocalFiles(folder))
            assert latest == max(after, key=lambda one: one.low_watermark), frozen_at
        frozen_at += 1
    assert frozen_at > 30


def test_a_reader_who_lists_the_files_at_any_step_misses_no_line(tmp_path: Path) -> None:
    listings: list[tuple[int, list[str]]] = []
    added: list[str] = []
    files = LocalFiles(tmp_path)

    def look() -> None:
        listings.append((len(added), files.names()))
        for seen, names in listings:
            # Read when fewer epochs have passed than become one file, without what is gone.
            if len(added) - seen < FILES_IN_ONE:
                texts = [files.read(name) or "" for name in names]
                lines = {one.text for text in texts for one in parse_lines(text)}
                assert lines >= set(added[:seen])

    writer = LogWriter(SteppedFiles(tmp_path, look), FILES_IN_ONE)
    for epoch in range(2 * FILES_IN_ONE**2 + 1):
        add_all(writer, [line(epoch)])
        added.append(line(epoch).text)
    assert len(listings) > 50


def test_a_new_owner_at_every_epoch_neither_repeats_lines_nor_leaves_more_files(
    tmp_path: Path,
) -> None:
    epochs = 40
    for epoch in range(epochs):
        # Each replays the last epoch of the one before.
        replayed = (line(e, writer=str(epoch)) for e in (max(epoch - 1, 0), epoch))
        add_all(LogWriter(LocalFiles(tmp_path), FILES_IN_ONE), replayed)
    names = {file for file in map(parse_file_name, LocalFiles(tmp_path).names()) if file}
    # Files and those that they were made of; the last level has the rest.
    assert len([file for file in names if file.level != 2]) <= 4 * FILES_IN_ONE
    by_epoch = {one.fields["epoch"]: one.text for one in all_lines(tmp_path)}
    assert sorted(by_epoch) == list(range(epochs))
    assert {one.text for one in all_lines(tmp_path)} == set(by_epoch.values())


def test_a_file_without_its_line_is_passed_over_and_the_line_is_written_beside_it(
    tmp_path: Path,
) -> None:
    files = LocalFiles(tmp_path)
    empty = LogFile(at(1), at(1))
    assert files.create(empty.name, "")
    add_all(LogWriter(files, 10), [line(0)])
    assert latest_line(files) == line(0)
    for _ in range(2):
        add_all(LogWriter(files, 10), [line(1)])
    assert latest_line(files) == line(1)
    assert "20260131T090001.000000Z~1.json" in files.names()
    assert sorted(one.text for one in all_lines(tmp_path)) == [line(0).text, line(1).text]


def test_an_idle_day_leaves_few_lines(tmp_path: Path) -> None:
    idle = [line(epoch, records=0) for epoch in range(300)]
    add_all(LogWriter(LocalFiles(tmp_path), 10), [line(0), *idle[1:150], line(150), *idle[151:]])
    assert latest_line(LocalFiles(tmp_path)) == idle[-1]
    assert len(all_lines(tmp_path)) < 60


def test_the_number_of_files_stays_the_same_when_the_log_grows(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    writer = LogWriter(files, 10)
    names, reads = list[int](), list[int]()
    for first in range(0, 600, 200):
        add_all(writer, (line(epoch) for epoch in range(first, first + 200)))
        names.append(len(files.names()))
        steps = list[None]()
        assert latest_line(SteppedFiles(tmp_path, lambda: steps.append(None))) == line(first + 199)  # noqa: B023
        reads.append(len(steps))
    # Of the last level two for two hundred epochs.
    assert names[2] - names[1] == 2
    # The list of names, and the last file.
    assert reads == [2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), max_size=40))
@settings(deadline=None)
def test_merged_lines_say_all_that_the_lines_said(epochs: list[tuple[int, int]]) -> None:
    lines = [line(epoch, records=records) for epoch, records in epochs]
    merged = merge_lines(lines)
    assert covers(merged, lines)
    assert [one.low_watermark for one in merged] == sorted(one.low_watermark for one in merged)
    assert {one.text for one in lines if not one.is_idle} == {
        one.text for one in merged if not one.is_idle
    }
    assert merge_lines(merged) == merged
    if lines:
        latest = max(one.low_watermark for one in lines)
        assert merged[-1].low_watermark == latest
        without_last = [one for one in merged if one.low_watermark < latest]
        assert not covers(without_last, lines)


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001
    st.sampled_from([0, 1, 2]),
    st.integers(0, 12),
)
def test_a_file_s_name_says_what_it_is(first: datetime, level: int, attempt: int) -> None:
    first = first.replace(tzinfo=UTC)
    last = first + timedelta(seconds=level)
    file = LogFile(first, last, level, attempt)
    assert parse_file_name(file.name) == file
    assert parse_file_name(f"{file.name}.crc") is None


def test_an_epoch_does_not_wait_for_a_hundred_requests_one_after_the_other() -> None:
    with s3() as store:
        store.requests.clear()
        writer = LogWriter(ObjectFiles(store.path, store.options, "log"), 8)
        four = threading.Barrier(4)

        def meet_others(method: str, name: str) -> None:
            if method == "POST" or (method == "GET" and name.startswith("log/")):
                four.wait(timeout=60)

        for epoch in range(16):
            writer.add(line(epoch))
            store.before = meet_others
            writer.merge()
            store.before = nothing
        methods = [method for method, _ in store.requests]
        # A POST deletes.
        assert methods.count("POST") == 8
        written = latest_line(ObjectFiles(store.path, store.options, "log"))
    assert written == line(15)


@given(st.lists(st.integers(0, 40), unique=True, max_size=30), st.integers(-1, 41))
@settings(deadline=None, max_examples=50)
def test_the_latest_line_at_or_before_a_time_is_there_after_merges(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[int], until: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    lines = [line(epoch) for epoch in sorted(epochs)]
    add_all(LogWriter(LocalFiles(folder), FILES_IN_ONE), lines)
    before = [one for one in lines if one.low_watermark <= at(until)]
    assert latest_line(LocalFiles(folder), at(until)) == (before[-1] if before else None)
    assert earliest_line(LocalFiles(folder)) == (lines[0] if lines else None)
