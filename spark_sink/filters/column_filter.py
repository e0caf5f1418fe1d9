"""The column filter: it keeps some columns of a record.

A column that is left out is missing from the record's column_types and from the values of its mods.
The record stays, even if no other column has changed. Values that stay are not parsed and written
again: they are the texts that Spanner sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.filters.globs import joined

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Only the end of a value matters: numbers of any length stay texts.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, strict=False)
_WHITESPACE: Final = re.compile(r"[ \t\n\r]*")
_FILTERED_COLUMNS: Final = ("column_types", "mods")


@dataclass(frozen=True)
class ColumnFilter:
    """A filter of columns; an empty list leaves nothing out.

    A column's full name is its table's full name, a dot and its own name. The primary key's columns
    are always kept.

    Attributes:
        columns, exclude_columns: globs of full column names, with * and ?.

    Raises:
        ValueError: a glob lacks the dot, so it can't match a column.
    """

    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for glob in (*self.columns, *self.exclude_columns):
            if "." not in glob:
                raise ValueError(
                    f"{glob!r} can't name a column: write a table and a dot, as in {glob}.Name or"
                    f" *.{glob}"
                )

    @property
    def keeps_all(self) -> bool:
        """Whether no column is left out."""
        return not (self.columns or self.exclude_columns)

    def keeps(self, table: str, column: str) -> bool:
        """Return whether a column outside the primary key is kept.

        Args:
            table: the table's full name.
            column: the column's name.
        """
        is_kept = self._decisions.get((table, column))
        if is_kept is None:
            name = f"{table}.{column}"
            is_kept = all(
                (pattern.fullmatch(name) is not None) is wanted
                for pattern, wanted in self._patterns
            )
            self._decisions[table, column] = is_kept
        return is_kept

    def apply_to_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of the output's contract without the columns that are left out.

        Raises:
            ValueError: a mod's values are not a JSON object.
        """
        if self.keeps_all:
            return dict(row)
        table, types = row["table_name"], row["column_types"]
        key = {column["name"] for column in types if column["is_primary_key"]}

        def keeps(name: str) -> bool:
            return name in key or self.keeps(table, name)

        mods = [
            {
                **mod,
                "new_values": select_members(mod["new_values"], keeps),
                "old_values": select_members(mod["old_values"], keeps),
            }
            for mod in row["mods"]
        ]
        columns = [column for column in types if keeps(column["name"])]
        return {**row, "column_types": columns, "mods": mods}

    def apply_to_batch(self, records: RecordBatch) -> RecordBatch:
        """Return the records of a batch without the columns that are left out.

        Raises:
            ValueError: a mod's values are not a JSON object.
        """
        if self.keeps_all:
            return records
        import pyarrow as pa

        rows = records.select(["table_name", *_FILTERED_COLUMNS]).to_pylist()
        filtered = [self.apply_to_row(row) for row in rows]
        for name in _FILTERED_COLUMNS:
            field = records.schema.field(name)
            column = pa.array([row[name] for row in filtered], field.type)
            records = records.set_column(records.schema.get_field_index(name), field, column)
        return records

    @cached_property
    def _patterns(self) -> Sequence[tuple[re.Pattern[str], bool]]:
        """A regular expression of the full name, and whether it has to match."""
        return [
            (re.compile(joined(globs), re.DOTALL), wanted)
            for globs, wanted in ((self.columns, True), (self.exclude_columns, False))
            if globs
        ]

    @cached_property
    def _decisions(self) -> dict[tuple[str, str], bool]:
        """Whether a column is kept, by table and column; a database has few of them."""
        return {}


def select_members(text: str | None, keeps: Callable[[str], bool]) -> str | None:
    """Return a JSON object without some of its members; the others keep their exact text.

    Args:
        text: the object; None and an empty text are returned as they are.
        keeps: returns whether the member of a name stays.

    Raises:
        ValueError: text is not a JSON object.
    """
    if not text:
        return text
    members = list(_members(text))
    selected = [text[start:end] for name, start, end in members if keeps(name)]
    return text if len(selected) == len(members) else f"{{{','.join(selected)}}}"


def member_names(text: str | None) -> Iterator[str]:
    """Yield the names of a JSON object's members; None and an empty text have none.

    Raises:
        ValueError: text is not a JSON object.
    """
    if text:
        for name, _, _ in _members(text):
            yield name


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each member of a JSON object, and where its text starts and ends."""
    at = _skip_mark(text, _skip_whitespace(text, 0), "{")
    if text[at : at + 1] == "}":
        return
    while True:
        _require(text, at, '"')
        name, end = _DECODER.raw_decode(text, at)
        _, end = _DECODER.raw_decode(text, _skip_mark(text, _skip_whitespace(text, end), ":"))
        yield name, at, end
        end = _skip_whitespace(text, end)
        if text[end : end + 1] == "}":
            return
        at = _skip_mark(text, end, ",")


def _skip_whitespace(text: str, at: int) -> int:
    """Return the position after the white space at this one."""
    match = _WHITESPACE.match(text, at)
    assert match is not None  # noqa: S101 - the pattern matches the empty text
    return match.end()


def _skip_mark(text: str, at: int, mark: str) -> int:
    """Return the position after a required mark and the white space behind it."""
    _require(text, at, mark)
    return _skip_whitespace(text, at + 1)


def _require(text: str, at: int, mark: str) -> None:
    if text[at : at + 1] != mark:
        # Without the text itself: a message must not show columns that are left out.
        raise ValueError(f"a mod's values are not a JSON object: no {mark} at character {at}")
