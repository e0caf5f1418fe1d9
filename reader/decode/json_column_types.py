"""The column types with which JSON data change records begin.

Spanner sorts the names in a JSON object, so column_types comes first in a data change record, and
all records of a table, until its columns change, begin with the same bytes: a third of a record of
a few columns, and more of a wide one. Those bytes are parsed once, and compared in all others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import orjson

from slackwater.reader.decode.protobuf_cursor import Ints, matches_at
from slackwater.reader.decode.records import json_column_types
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.records import ColumnType

_PREFIX: Final = b'{"data_change_record":{"column_types":['
_LIST: Final = len(_PREFIX) - 1


class JsonColumnTypes:
    """What JSON records begin with.

    Args:
        rows: where the bytes are.
        begin, end: where each record lies.

    Attributes:
        index: of each record, which of the column types it has; -1 where it begins otherwise.
        distinct: each list of column types once.
        end: where the comma behind the column types stands.

    Raises:
        ValueError: a list of column types is no JSON.
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
    """Behind the list of column types."""
    end = _LIST
    while True:
        # A name could hold these bytes too: the list ends where it can be parsed.
        end = text.index(b'],"', end) + 1
        try:
            orjson.loads(text[_LIST:end])
        except orjson.JSONDecodeError:
            continue
        return end
