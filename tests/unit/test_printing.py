"""What comes from databases is safe to show: no command to a terminal, no turned or broken line."""

import json
import logging
import unicodedata
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from slackwater import log_lines
from slackwater.monitoring.live_view import LiveView
from slackwater.printing import in_one_line, show
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.state.commit import restart_at
from slackwater.state.models import Partition, PipelineState
from slackwater.state.store import Store
from slackwater.tail.line_format import LineFormat, LineFormatter
from tests.support.command_line import output_of, slackwater
from tests.support.served_pages import get, served
from tests.unit.config.test_settings import MINIMAL
from tests.unit.spark_sink.test_envelopes import KEYS, ORIGIN, record

# Of each kind, and those at the ends of the ranges.
MARKS = (
    "\x00\x07\x1b[31m\x1f\r\x7f\x80\x85\x9b31m\x9f\u061c\u200e\u200f\u2028\u2029"
    "\u202a\u202e\u2066\u2069"
)
NAME = f"a{MARKS}[red]b"


def unsafe(text: str) -> set[str]:
    """Return the marks of a text that a terminal obeys, or that turn or end a line."""
    return {
        mark
        for mark in text
        if unicodedata.category(mark) in ("Cc", "Zl", "Zp")
        or unicodedata.bidirectional(mark) in ("LRE", "RLE", "LRO", "RLO", "PDF")
        or unicodedata.bidirectional(mark) in ("LRI", "RLI", "FSI", "PDI")
    } - {"\n"}


def test_each_mark_is_written_as_json_writes_it() -> None:
    every = "".join(map(chr, range(0x3000)))
    assert unsafe(in_one_line(every)) == set()
    assert "\n" not in in_one_line(every)
    plain = "".join(mark for mark in every if mark not in '"\\')
    assert json.loads(f'"{in_one_line(plain)}"') == plain
    assert (
        in_one_line("é 漢 \U0001f468\u200d\U0001f469 \\u001b")
        == "é 漢 \U0001f468\u200d\U0001f469 \\u001b"
    )


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(f"one\ntwo {NAME}")
    show("three", to_errors=True)
    shown = capsys.readouterr()
    assert shown.err == "three\n"
    assert shown.out.startswith("one\ntwo a\\u0000\\u0007\\u001b[31m")
    assert unsafe(shown.out) == set()


@pytest.mark.parametrize("line_format", LineFormat)
def test_a_line_of_tail_shows_marks_and_its_json_has_the_same_values(
    line_format: LineFormat,
) -> None:
    values = json.dumps({"Name": NAME}, ensure_ascii=False)
    row = record(
        "UPDATE", {"keys": KEYS, "new_values": values, "old_values": None}, table_name=NAME
    )
    formatter = LineFormatter(
        line_format, envelopes()["wrapped"](EnvelopeOptions(ORIGIN)), RecordFilter(), None
    )
    [line] = formatter.lines(pa.Table.from_pylist([row]))
    assert line.count("\n") == 1
    assert unsafe(line) == set()
    if line_format is LineFormat.JSON:
        fields = json.loads(line)
        assert fields["table"] == NAME
        assert fields["value"]["after"]["Name"] == NAME


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write the settings of a pipeline whose tokens, owner and reason are hostile."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    restart_at(store, "orders", 10**9, [])
    partitions = [Partition(f"{number}{NAME}", 10**9, frozenset([NAME])) for number in range(3)]
    store.replace_partitions("orders", partitions, generation=None)
    store.set_state("orders", PipelineState.FAILED, f"first {NAME}\nsecond", 0)
    store.close()
    file = tmp_path / "slackwater.yaml"
    file.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--json"),
        ("partitions",),
        ("partitions", "--format", "json"),
        ("partitions", "--format", "dot"),
    ],
)
def test_tokens_and_reasons_are_safe_to_show(
    arguments: tuple[str, ...], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody answers there, for which status waits.
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "127.0.0.1:1")
    monkeypatch.setattr("slackwater.commands.status._ANSWER_S_MAX", 0.3)
    shown = output_of(slackwater(arguments[0], "-c", str(config), *arguments[1:]))
    assert unsafe(shown) == set()
    assert "\\u001b" in shown
    assert "\nsecond" not in shown


def test_an_error_is_safe_to_show(tmp_path: Path) -> None:
    done = slackwater("status", "-c", str(tmp_path / "\x1b[31mno\u202efile"))
    assert done.returncode == 2
    assert "\\u001b[31mno\\u202efile" in done.stderr
    assert unsafe(done.stderr) == set()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_log_line_is_safe_to_show(
    log_format: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = log_lines.handler(log_format)
    handler.emit(logging.LogRecord("slackwater", 30, "", 0, f"{NAME}\nnext", None, None))
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert unsafe(line) == set()


def test_answers_over_http_are_safe_to_show(tmp_path: Path, config: Path) -> None:
    with served(tmp_path) as place:
        for path in ("/readyz", "/api/pipelines", "/api/pipelines/orders/partitions"):
            _, _, body = get(place, path)
            assert unsafe(body) == set()
            assert "\\u001b" in body or path == "/readyz"
        assert json.loads(get(place, "/api/pipelines")[2])[0]["reason"].startswith(f"first {NAME}")


def test_the_live_view_takes_no_name_for_markup() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system="standard")
    with LiveView(f"[red]{NAME}[/]", console):
        pass
    assert "[red]a" in out.getvalue()
