"""A table's changes as data change records of Spanner's form, with a column for each listed cell.

So everything that takes data change records takes a table of Bigtable's, too: each change of a row
is a record with one mod. Only listed columns are in it, and of them only those that it changes.
"""

import math
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.bigtable.changes import SCHEMA as CHANGES
from slackwater.reader.bigtable.table import ROW_KEY, BigtableTable
from slackwater.reader.schema import SCHEMA


def schema_of(table: BigtableTable) -> pa.Schema:
    """Return the columns in which a table's changes are read."""
    return SCHEMA if table.columns else CHANGES


def records_of(table: BigtableTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a record for each change, in batches of reader.schema's columns.

    Args:
        table: with its columns.
        batches: the changes, as reader.bigtable.changes has them.
    """
    cells = dict(table.columns)
    key_type = cells.pop(ROW_KEY, "BYTES")
    same = _same_in_all(table.table, key_type, cells)
    for batch in batches:
        rows = batch.to_pylist()
        first = pa.array([0] * len(rows), pa.int32())
        columns = {name: values.take(first) for name, values in same.items()}
        for name in ("commit_timestamp", "low_watermark"):
            columns[name] = batch[name]
        columns["partition_token"] = batch["partition"]
        columns["is_system_transaction"] = pc.equal(batch["type"], "GARBAGE_COLLECTION")
        ids = [
            f"{row['tiebreaker']:010d}-{commit_us}-{row['source_cluster_id'] or ''}"
            for row, commit_us in zip(rows, _microseconds(batch["commit_timestamp"]), strict=True)
        ]
        # Of changes of a row at the same time the one with the larger tie breaker is later.
        columns["server_transaction_id"] = pa.array(ids, pa.string())
        keys = [sha256(row["row_key"]).hexdigest()[:16] for row in rows]
        columns["record_sequence"] = pa.array(keys, pa.string())
        mods = [[_mod(row, key_type, cells)] for row in rows]
        columns["mods"] = pa.array(mods, SCHEMA.field("mods").type)
        yield pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _same_in_all(table: str, key_type: str, cells: Mapping[str, str]) -> dict[str, pa.Array]:
    """Return what all records of a table have, as arrays of one value."""
    column_types = [_column_type(ROW_KEY, key_type, 1)]
    column_types += [_column_type(name, of, at) for at, (name, of) in enumerate(cells.items(), 2)]
    same = {
        "is_last_record_in_transaction_in_partition": True,
        "table_name": table,
        "column_types": column_types,
        "mod_type": "UPDATE",
        "value_capture_type": "NEW_VALUES",
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": "",
    }
    return {name: pa.array([value], SCHEMA.field(name).type) for name, value in same.items()}


def _microseconds(times: pa.Array) -> list[int]:
    microseconds: list[int] = times.cast(pa.int64()).to_pylist()
    return microseconds


def _column_type(name: str, code: str, position: int) -> dict[str, Any]:
    return {
        "name": name,
        "type": f'{{"code":"{code}"}}',
        "is_primary_key": name == ROW_KEY,
        "ordinal_position": position,
    }


def _mod(row: Mapping[str, Any], key_type: str, cells: Mapping[str, str]) -> dict[str, Any]:
    return {
        "keys": orjson.dumps({ROW_KEY: value_of(row["row_key"], key_type)}).decode(),
        "new_values": orjson.dumps(_new_values(row["entries"], cells)).decode(),
        "old_values": "{}",
    }


def _new_values(entries: Iterable[Mapping[str, Any]], cells: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the columns that a change has set, and null for those it has deleted.

    Of several cells of a column the one with the latest timestamp counts, as for a reader of the
    row. The value after an aggregation is not known, and neither is one after a part of the cells
    was deleted: such a column is left out.
    """
    values: dict[str, Any] = {}
    times: dict[str, int] = {}
    for entry in entries:
        kind, family, micros = entry["kind"], entry["family"], entry["timestamp_micros"]
        end = entry["end_timestamp_micros"]
        name = f"{family}:{(entry['qualifier'] or b'').decode(errors='replace')}"
        if kind in ("DELETE_FAMILY", "DELETE_ROW"):
            is_row = kind == "DELETE_ROW"
            deleted = [each for each in cells if is_row or each.startswith(f"{family}:")]
            values.update(dict.fromkeys(deleted))
            times = {each: time for each, time in times.items() if each not in deleted}
        elif name not in cells:
            continue
        elif kind == "SET_CELL":
            if name not in times or micros >= times[name]:
                values[name], times[name] = value_of(entry["value"], cells[name]), micros
        elif kind != "DELETE_CELLS":
            values.pop(name, None)
        elif not (micros or end):
            values[name] = None
            times.pop(name, None)
        elif name in times and micros <= times[name] < (end or times[name] + 1):
            # Earlier cells may be left, also of former changes.
            values.pop(name, None)
    return values


def value_of(value: bytes, code: str) -> Any:
    """Return a cell's value as Spanner's JSON has it.

    Args:
        value: the cell's bytes.
        code: one of table.TYPES.

    Returns:
        An object with the bytes if the value is not of the type: a column of numbers refuses it.
    """
    try:
        return _VALUES[code](value)
    except (ValueError, struct.error):
        return {"bytes": b64encode(value).decode()}


def _float(value: bytes) -> float | str:
    number: float = struct.unpack(">d", value)[0]
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _integer(value: bytes) -> str:
    return str(struct.unpack(">q", value)[0])


_VALUES: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "BYTES": lambda value: b64encode(value).decode(),
    "STRING": bytes.decode,
    "INT64": _integer,
    "FLOAT64": _float,
}
