"""A Parquet file's statistics as Delta's log has them (Delta's protocol, "Per-file Statistics")."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.timestamp import datetime_to_rfc3339

# In characters, as in the bounds of Delta's own writers.
_TEXT_MAX: Final = 32


def stats_text(metadata: pq.FileMetaData) -> str:
    """Return the number of rows, and the bounds of columns with times, integers or short texts.

    Long texts have none: Delta wants them cut.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    schema = metadata.schema.to_arrow_schema()
    by_name: dict[str, list[pq.Statistics | None]] = {name: [] for name in schema.names}
    for group in groups:
        for number in range(group.num_columns):
            column = group.column(number)
            # Of a nested column the path has several parts.
            if column.path_in_schema in by_name:
                by_name[column.path_in_schema].append(column.statistics)
    fields: dict[str, Any] = {"numRecords": metadata.num_rows}
    bounds = {name: bound for name, column in by_name.items() if (bound := _bounds(column))}
    for place, name in enumerate(("minValues", "maxValues", "nullCount")):
        fields[name] = {column: bound[place] for column, bound in bounds.items()}
    return json.dumps(fields)


def exact_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a file, by their paths, of which Arrow's bounds are those of readers.

    Its bounds of floating-point numbers ignore NaN, which for Spark is larger than all others.
    """
    return [path for field in schema for path in _exact(field.name, field.type)]


def _exact(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for part in (kind.field(place) for place in range(kind.num_fields)):
            yield from _exact(f"{path}.{part.name}", part.type)
    elif pa.types.is_list(kind):
        yield from _exact(f"{path}.list.element", kind.value_type)
    elif not pa.types.is_floating(kind):
        yield path


def rows_of(stats: str) -> int:
    """Return the number of rows that statistics state."""
    return int(json.loads(stats)["numRecords"])


def _bounds(groups: Sequence[pq.Statistics | None]) -> tuple[Any, Any, int] | None:
    """Return a column's least and greatest value and its NULLs; None if they are not known."""
    counted = [group for group in groups if group is not None and group.has_min_max]
    if not counted or len(counted) < len(groups):
        return None
    least, greatest = min(group.min for group in counted), max(group.max for group in counted)
    if isinstance(least, str):
        if max(len(least), len(greatest)) > _TEXT_MAX:
            return None
    elif type(least) is not int and not isinstance(least, datetime):
        return None
    nulls = sum(group.null_count for group in counted)
    return _value(least), _value(greatest), nulls


def _value(value: Any) -> Any:
    return datetime_to_rfc3339(value) if isinstance(value, datetime) else value
