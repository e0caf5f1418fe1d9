"""The column types at the beginning of JSON data change records, parsed once for many records.

Spanner sorts the names in a JSON object, so column_types comes first in a data change record. Until
a table's columns change, all its records begin with the same bytes: a third of a record with few
columns, more of a wide one. These bytes are parsed in one record and compared in the others.
"""

from typing import Final

import numpy as np
import orjson

from slackwater.reader.decode.postgresql_records import json_column_types
from slackwater.reader.decode.protobuf_cursor import Ints, matches_at
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.records import ColumnType

_PREFIX: Final = b'{"data_change_record":{"column_types":['
_LIST: Final = len(_PREFIX) - 1


class JsonColumnTypes:
    """The column types of many JSON records.

    Args:
        rows: with the buffer that holds the records.
        begin, end: the place of each record in it.

    Attributes:
        distinct: each list of column types once.
        index: of each record, the index of its column types in distinct; -1 for a record that does
            not begin with column_types.
        end: of each record, the place of the comma after its column types.

    Raises:
        ValueError: a list of column types is not valid JSON.
    """

    def __init__(self, rows: RowSpans, begin: Ints, end: Ints) -> None:
        self.index = np.full(len(begin), -1, np.int64)
        self.distinct: list[tuple[ColumnType, ...]] = []
        self.end = begin.copy()
        sizes = end - begin
        unmatched = np.flatnonzero(sizes > len(_PREFIX))
        unmatched = unmatched[matches_at(rows.buffer, begin[unmatched], _PREFIX)]
        while len(unmatched):
            first = unmatched[0]
            text = rows.joined[begin[first] : end[first]]
            size = _list_end(text)
            self.distinct.append(json_column_types(orjson.loads(text[_LIST:size])))
            candidates = unmatched[sizes[unmatched] > size]
            same = candidates[
                matches_at(rows.buffer, begin[candidates] + len(_PREFIX), text[len(_PREFIX) : size])
            ]
            self.index[same] = len(self.distinct) - 1
            self.end[same] = begin[same] + size
            unmatched = unmatched[self.index[unmatched] < 0]


def _list_end(text: bytes) -> int:
    """Return the place after the list of column types."""
    end = _LIST
    while True:
        # A column's name can hold these bytes, too: the list ends where it can be parsed.
        end = text.index(b'],"', end) + 1
        try:
            orjson.loads(text[_LIST:end])
        except orjson.JSONDecodeError:
            continue
        return end
