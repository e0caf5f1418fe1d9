"""Epochs of single changes of mirrors, and who merged them."""

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.table.snapshots import Operation

from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.table_names import plain_name
from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch
from tests.support.epoch_rows import START, Record
from tests.support.mirror_looks import current
from tests.support.read_tables import iceberg_at

# Not a name that a plain SQL statement may have.
TABLE = "sales.Order lines"
FOLDER = plain_name(TABLE)
# The columns of keys, of all tables.
KEY = {"Id": "INT64", "At": "TIMESTAMP", "Order": "STRING"}
Change = tuple[str, Mapping[str, Any], Mapping[str, Any], str]


def record(at: int, change: Change, columns: Mapping[str, str], table: str = TABLE) -> Record:
    mod_type, key, values, capture = change
    types = [
        (name, json.dumps({"code": kind}), name in KEY, place)
        for place, (name, kind) in enumerate(columns.items(), 1)
        if name in key or name in values
    ]
    moment = START + timedelta(microseconds=at)
    mods = [(json.dumps(key), json.dumps(values), "{}")]
    of_transaction = (mod_type, capture, 1, 1, "", False, "p", START)
    return (moment, f"t{at}", "00000000", True, table, types, mods, *of_transaction)


class FoldedBySpark(Mirrors):
    """Mirrors whose epochs are all too large for the driver to fold: Spark does."""

    def _small(self, *_: Any) -> SmallEpoch | None:
        return None


def operations(path: Path) -> list[str]:
    """Return what merged into a table: the driver, or others."""
    if (path / "metadata").exists():
        made = [snapshot.summary for snapshot in iceberg_at(path).snapshots()]
        return ["driver" for s in made if s and s.operation == Operation.OVERWRITE]
    commits = sorted((path / "_delta_log").glob("*.json"))
    infos = [
        json.loads(line)["commitInfo"]
        for commit in commits
        for line in commit.read_text().splitlines()
        if "commitInfo" in line
    ]
    return [
        "driver" if info["engineInfo"] == "slackwater" else "other"
        for info in infos
        if info["operation"] == "MERGE"
    ]


COLUMNS = {"Id": "INT64", "A": "STRING"}


def one(epoch: int, value: str) -> list[Record]:
    """Return an epoch that changes one row."""
    mod_type = "INSERT" if epoch == 1 else "UPDATE"
    return [record(epoch, (mod_type, {"Id": "1"}, {"A": value}, "NEW_ROW"), COLUMNS, "T")]


def value(path: Path) -> str:
    ((row,),) = (current(path / "T").rows,)
    text: str = row["A"]
    return text
