"""Views over a typed changelog in BigQuery: up to the low watermark, or with Datastream's columns.

These are those of its write mode "append-only": a row for each change, two for an update, with the
STRUCT datastream_metadata (Datastream's documentation, "BigQuery destination").
"""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from slackwater.spark_sink.output.bigquery.address import TableAddress

# The table with the low watermarks of pipelines.
MARKS: Final = "_slackwater"
_PREFIX: Final = "_datastream_"
_WITH_OLD_VALUES: Final = "['UPDATE-DELETE', 'UPDATE-INSERT']"
_WITHOUT: Final = "['UPDATE-INSERT']"
# All digits, so that texts sort as the numbers do.
_DIGITS: Final = 20


def cut(table: TableAddress, pipeline: str) -> str:
    """Return the query of a changelog's rows up to the low watermark of all its pipeline's."""
    marks = replace(table, table=MARKS).id
    name = json.dumps(pipeline, ensure_ascii=False)
    return (
        f"SELECT * FROM `{table.id}` WHERE low_watermark <="
        f" (SELECT MAX(low_watermark) FROM `{marks}` WHERE pipeline = {name})"
    )


def datastream_view(
    table: TableAddress,
    pipeline: str,
    columns: Collection[str],
    key: Collection[str],
    *,
    has_old_values: bool,
) -> str:
    """Return the statement that makes a view with Datastream's columns, in BigQuery's SQL.

    Args:
        table: the typed changelog's.
        pipeline: as the table names its own.
        columns: the names of the Spanner table's columns, in its order.
        key: those of the primary key.
        has_old_values: changes have the values before them, too. Without, a deleted row has its key
            alone, and an update no row UPDATE-DELETE.
    """
    listed = [_column(name, is_key=name in key, has_old_values=has_old_values) for name in columns]
    view = replace(table, table=_PREFIX + table.table).id
    types = _WITH_OLD_VALUES if has_old_values else _WITHOUT
    joined = ",\n  ".join([*listed, _metadata([name for name in columns if name in key])])
    return (
        f"CREATE OR REPLACE VIEW `{view}` AS\n"
        f"SELECT\n  {joined}\nFROM ({cut(table, pipeline)}) AS c,\n"
        f"  UNNEST(IF(mod_type = 'UPDATE', {types}, [mod_type])) AS change_type;\n"
    )


def _column(name: str, *, is_key: bool, has_old_values: bool) -> str:
    quoted = f"`{name}`"
    if is_key:
        return f"c.key.{quoted} AS {quoted}"
    if not has_old_values:
        return f"c.after.{quoted} AS {quoted}"
    is_changed = f"{json.dumps(name, ensure_ascii=False)} IN UNNEST(c.given.before)"
    before = f"IF(mod_type = 'DELETE' OR {is_changed}, c.before.{quoted}, c.after.{quoted})"
    is_after = "change_type IN ('INSERT', 'UPDATE-INSERT')"
    return f"IF({is_after}, c.after.{quoted}, {before}) AS {quoted}"


def _padded(number: str) -> str:
    return f"LPAD(CAST({number} AS STRING), {_DIGITS}, '0')"


_PLACE: Final = (
    _padded("UNIX_MICROS(commit_timestamp)"),
    "server_transaction_id",
    "record_sequence",
    _padded("mod_number"),
    # Of an update, the row before it is first.
    "IF(change_type = 'UPDATE-DELETE', '0', '1')",
)


def _metadata(key: Collection[str]) -> str:
    # Rows of an initial scan are of no transaction: they have their key.
    identity = ", ".join([*_PLACE, *(f"TO_JSON_STRING(c.key.`{name}`)" for name in key)])
    place = f"[{', '.join(_PLACE)}]"
    return (
        "STRUCT(\n"
        f"    TO_HEX(MD5(ARRAY_TO_STRING([{identity}], '/'))) AS UUID,\n"
        "    UNIX_MILLIS(commit_timestamp) AS SOURCE_TIMESTAMP,\n"
        f"    ARRAY_TO_STRING({place}, '/') AS CHANGE_SEQUENCE_NUMBER,\n"
        "    change_type AS CHANGE_TYPE,\n"
        f"    {place} AS SORT_KEYS\n"
        "  ) AS datastream_metadata"
    )
