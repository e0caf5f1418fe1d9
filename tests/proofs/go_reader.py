"""What a reader of others reads of both kinds of streams, held against the truth.

`python -m tests.proofs.go_reader PATH`, where PATH is the binary of spanner-change-streams-tail
0.4.2 or later: `go install github.com/cloudspannerecosystem/spanner-change-streams-tail@latest`
makes it. It is written in Go over Google's client, and shares no code with ours. The server is the
synthetic one, so this shows that the server speaks both modes as others understand them. Our own
reader is held against the same server's truth in tests.faults.mutable_seeded and in
tests/faults/test_synthetic_faults.py.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import ChangeRecord, ColumnType, DataChangeRecord, Mod
from slackwater.timestamp import format_rfc3339
from tests.synthetic.mutable import mutable_stream
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, lineage
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner

START_US = 1_769_850_000_000_000
STEP_US = 1_000
_KINDS = {
    "data_change_record": "DataChangeRecord",
    "partition_start_records": "PartitionStartRecord",
    "partition_end_records": "PartitionEndRecord",
    "partition_event_records": "PartitionEventRecord",
}
# The partition's token, the record's kind, its record_sequence, and its mods.
Record = tuple[str, str, str, tuple[str, ...]]


def read_by(program: str, host: str, end_us: int) -> list[Record]:
    """Return the records that the program prints, without those of the first query."""
    done = subprocess.run(
        [
            program,
            *("-p", "test-project", "-i", "test", "-d", "db", "-s", CHANGE_STREAM),
            *("--start", format_rfc3339(START_US * 1_000), "--end", format_rfc3339(end_us * 1_000)),
            *("--format", "json", "--verbose"),
        ],
        env={**os.environ, "SPANNER_EMULATOR_HOST": host},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [record for message in _objects(done.stdout) for record in _records(message)]


def expected(script: Script) -> list[Record]:
    """Return all records of a script."""
    return [
        (partition.token, type(record).__name__, _sequence(record), _mods(record))
        for partition in script.partitions
        if isinstance(partition.rows, ListedRows)
        for record in partition.rows.records
    ]


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    decoder, position = json.JSONDecoder(), 0
    text = text.strip()
    while position < len(text):
        value, position = decoder.raw_decode(text, position)
        yield value
        while position < len(text) and text[position].isspace():
            position += 1


def _records(message: Mapping[str, Any]) -> Iterator[Record]:
    token = message.get("partition_token")
    if not token:
        return
    for change in message.get("change_record", []):
        for key, kind in _KINDS.items():
            for record in change.get(key) or []:
                mods = tuple(_canonical(mod) for mod in record.get("mods") or [])
                yield token, kind, record["record_sequence"], mods


def _sequence(record: ChangeRecord) -> str:
    return str(getattr(record, "record_sequence", ""))


def _mods(record: ChangeRecord) -> tuple[str, ...]:
    mods: Sequence[Mod] = record.mods if isinstance(record, DataChangeRecord) else ()
    return tuple(
        _canonical({name: json.loads(text) for name, text in mod._asdict().items()}) for mod in mods
    )


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def moving_script(seed: int, dialect: Dialect) -> Script:
    """Return a history with mutable key ranges."""
    return mutable_stream(
        seed, start_us=START_US, step_us=STEP_US, dialect=dialect, functions=("",), adds=False
    ).script


def splitting_script(seed: int, dialect: Dialect) -> Script:
    """Return a history with immutable key ranges: partitions split, merge and move twice."""
    choose = random.Random(seed)
    changes_us = [START_US + 20 * STEP_US, START_US + 40 * STEP_US]
    end_us = START_US + 60 * STEP_US
    partitions = []
    for partition in lineage(3, START_US, changes_us, seed=seed):
        times = range(partition.start_us, partition.end_us or end_us, STEP_US // 4)
        some = sorted(choose.sample(times, 10))
        records = tuple(_inserted(time_us, n, partition.token) for n, time_us in enumerate(some))
        partitions.append(replace(partition, rows=ListedRows(records, dialect)))
    return Script(dialect, tuple(partitions))


def _inserted(time_us: int, number: int, token: str) -> DataChangeRecord:
    columns = (
        ColumnType("Id", '{"code":"INT64"}', True, 1),
        ColumnType("A", '{"code":"STRING"}', False, 2),
    )
    mod = Mod(f'{{"Id":"{number}"}}', f'{{"A":"{token}"}}', "{}")
    return DataChangeRecord(
        *(time_us * 1_000, f"t{time_us}", f"{number:08}", True, "T", columns, (mod,)),
        *("INSERT", "NEW_ROW", 1, 1, "", False),
    )


def main() -> int:
    """Read seeded histories of both modes in both dialects; 1 if any differs from the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", metavar="PATH")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    records, failed = Counter[str](), []
    for seed, dialect, make in product(seeds, Dialect, (moving_script, splitting_script)):
        script = make(seed, dialect)
        last_us = max(p.rows.time_us(len(p.rows) - 1) for p in script.partitions if len(p.rows))
        with SyntheticSpanner(script) as server:
            read = Counter(read_by(options.program, server.host, last_us + 1))
        truth = Counter(expected(script))
        records[script.mode.value] += truth.total()
        if read != truth:
            failed.append((seed, dialect.value, script.mode.value))
            print(f"{failed[-1]}: lost {truth - read}, not there {read - truth}")
    print(f"{len(seeds)} seeds in both dialects, records {dict(records)}, differ: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
