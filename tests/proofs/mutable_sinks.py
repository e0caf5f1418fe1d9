"""Every kind of sink over a stream with mutable key ranges, and what it has to hold then."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from slackwater.reader.change_stream import ChangeStream
from slackwater.testing.plain_client import Truth
from slackwater.timestamp import format_rfc3339
from tests.faults.mutable_seeded import require_equal
from tests.proofs import sinks
from tests.proofs.sinks import (
    CHANGE_OF,
    ENVELOPES,
    RECORDS,
    SINKS,
    expected_changes_of,
    records_at,
    sink_settings,
)
from tests.support.kafka_broker import read_topics
from tests.support.mirror_looks import MARK, current
from tests.support.services import settings
from tests.support.typed_changelogs import plain
from tests.synthetic.mutable import MutableStream, mutable_stream
from tests.synthetic.mutable_changes import WATCHED
from tests.synthetic.server import CHANGE_STREAM

MIRRORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mirror": {"kind": "mirror", "format": "delta"},
    "iceberg_mirror": {"kind": "mirror", "format": "iceberg", "deletes": "mark"},
}
TOPICS: Final[Mapping[str, Mapping[str, Any]]] = {
    f"kafka_{envelope}": {
        "kind": "kafka",
        "envelope": envelope,
        "delivery": "exactly_once",
        "updated": envelope in ("wrapped", "row"),
    }
    for envelope in ENVELOPES
}
# They refuse parts of rows.
_WHOLE_ROWS: Final = ("kafka_wrapped", "kafka_row")
# Their number has no factor with those of the dialects, capture types and read functions of seeds.
KINDS: Final = (*SINKS, *MIRRORS, *TOPICS)
STEP_US: Final = 500_000


@dataclass(frozen=True)
class Life:
    """A history that passes, and the pipeline that reads it.

    Attributes:
        seed: of the history and of its pipeline's settings.
        sink: the name of the pipeline's sink: one of KINDS.
        source: the history.
        between_us: the time that the pipeline reads, from before the first change.
        folder: for all that it writes.
        broker: of Kafka, if the sink needs one.
    """

    seed: int
    sink: str
    source: MutableStream
    between_us: tuple[int, int]
    folder: Path
    broker: str = ""

    @property
    def name(self) -> str:
        return f"seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return the keys of its pipeline."""
        stream = ChangeStream("test-project", "test", self.name, CHANGE_STREAM)
        start = format_rfc3339(self.between_us[0] * 1_000)
        own = settings(stream, self.folder, start)
        own["source"] |= {"initial_scan": "no"}
        proof = ("ok", "record")[self.seed // 2 % 2]
        # Short, so that there are many however late the service has started.
        own["epoch"] |= {"proof": proof, "max_span": "2s"}
        if self.sink in SINKS:
            own["sink"] = sink_settings(self.sink, self._path, self.folder / "checkpoint")
        elif self.sink in MIRRORS:
            own["sink"].update(MIRRORS[self.sink])
        else:
            own["sink"] = {
                **TOPICS[self.sink],
                "checkpoint": str(self.folder / "checkpoint"),
                "topic": f"{self.name}.{{table}}",
                "options": {"kafka.bootstrap.servers": self.broker},
            }
        return {name: own[name] for name in ("source", "epoch", "sink")}

    def require_equal(self) -> Counter[str]:
        """Compare the output with the truth, and return what it held.

        Raises:
            AssertionError: it differs, or an epoch is no consistent cut.
        """
        truth = self.source.truth()
        seen = Counter({self.sink: len(truth.records)})
        seen.update(type(record).__name__ for record in self.source.partition_records())
        if self.sink in MIRRORS:
            self._require_rows()
        elif self.sink in TOPICS:
            _require_order(TOPICS[self.sink]["envelope"], self._messages(), truth)
        else:
            sinks.require_equal(self.sink, self._path, truth)
        if self.sink in RECORDS:
            output = records_at(self.sink, self._path)
            require_cuts(output)
            seen["epochs"] += len(set(output["low_watermark"].to_pylist()))
        return seen

    @property
    def _path(self) -> Path:
        return self.folder / "changes"

    def _require_rows(self) -> None:
        """Require that the mirrors have the rows that remain."""
        for table, rows in self.source.rows.items():
            folder = self._path / table
            mirrored = current(folder).rows if folder.exists() else []
            there = [row for row in mirrored if not row.get(MARK[0])]
            # A mirror may have columns of its own.
            mirror = [plain({name: row[name] for name in WATCHED[table]}) for row in there]
            expected = list(map(plain, rows))
            assert sorted(mirror, key=repr) == sorted(expected, key=repr), (self.name, table)

    def _messages(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return the messages of each partition of a topic, in their order, without tombstones."""
        prefix, has_tombstones = f"{self.name}.", self.sink == "kafka_debezium"
        return {
            (topic, number): [
                {
                    "table_name": topic.removeprefix(prefix),
                    "key": (message.key() or b"").decode(),
                    "value": value and value.decode(),
                }
                for message in messages
                if (value := message.value()) is not None or not has_tombstones
            ]
            for (topic, number), messages in read_topics(self.broker, prefix).items()
        }


def _require_order(
    envelope: str, messages: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]], truth: Truth
) -> None:
    """Require each change once, with those of a key in one partition, in commit order."""
    by_key: dict[Any, list[Any]] = {}
    for place, in_order in messages.items():
        for message in in_order:
            changes = by_key.setdefault((place, message["key"]), [])
            changes.append(CHANGE_OF[envelope](message))
    expected: dict[Any, list[Any]] = {}
    for record in truth.records:
        for mod, change in zip(record.mods, expected_changes_of(envelope, record), strict=True):
            expected.setdefault((record.table_name, mod[0]), []).append(change)
    require_equal(map(tuple, by_key.values()), map(tuple, expected.values()))


def require_cuts(output: pa.Table) -> None:
    """Require that each epoch holds the records up to its low watermark, from the former one on."""
    commits, watermarks = (
        output[name].to_pylist() for name in ("commit_timestamp", "low_watermark")
    )
    epochs = sorted(set(watermarks))
    assert [epochs[bisect_left(epochs, commit)] for commit in commits] == watermarks


def life_of(
    seed: int, begin_us: int, steps: int, folder: Path, broker: str, sink: str | None = None
) -> Life:
    """Return a seed's history from a time on, and the pipeline that reads it.

    Args:
        seed: of both.
        begin_us: when the history begins, microseconds.
        steps: how many times something is committed in it.
        folder: for the pipeline's files.
        broker: Kafka's, HOST:PORT.
        sink: one of KINDS; None for the next one with each seed.
    """
    sink = sink or KINDS[seed % len(KINDS)]
    source = mutable_stream(
        seed,
        start_us=begin_us,
        step_us=STEP_US,
        steps=steps,
        capture="NEW_ROW" if sink in _WHOLE_ROWS else None,
    )
    between_us = (begin_us + STEP_US // 2, begin_us + steps * STEP_US)
    return Life(seed, sink, source, between_us, folder, broker)
