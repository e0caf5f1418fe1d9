"""A table of the synthetic server, whose rows are made as they are read, millions if need be."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.cloud.spanner_v1.types import TypeCode

from tests.support.spanner_messages import PartialResultSetPb, value

NAME: Final = "T"
# By name: the type as the information schema spells it.
COLUMNS: Final = {
    "Id": "INT64",
    "Name": "STRING(MAX)",
    "Amount": "FLOAT64",
    "Payload": "STRING(MAX)",
}
_CODES: Final = (TypeCode.INT64, TypeCode.STRING, TypeCode.FLOAT64, TypeCode.STRING)
# An Id has as many digits in each row, so that all rows have the same size.
FIRST_ID: Final = 10**11
_DIGITS: Final = len(str(FIRST_ID))
_ROWS_A_MESSAGE: Final = 200


@dataclass(frozen=True, slots=True)
class SyntheticTable:
    """A table with the rows FIRST_ID, FIRST_ID + 1, and so on.

    Attributes:
        rows: how many.
        parts: into how many a partitioned read divides them.
    """

    rows: int
    parts: int = 1

    def messages(self, part: int | None) -> Iterator[list[bytes]]:
        """Yield the rows of a part as serialized PartialResultSets; None for all rows."""
        first = 0 if part is None else part * self.rows // self.parts
        end = self.rows if part is None else (part + 1) * self.rows // self.parts
        head = PartialResultSetPb(metadata=_metadata()).SerializeToString()
        for begin in range(first, end, _ROWS_A_MESSAGE):
            yield [head + _rows(np.arange(begin, min(end, begin + _ROWS_A_MESSAGE)))]
            head = b""
        if head:
            yield [head]


def _metadata() -> Any:
    metadata = PartialResultSetPb().metadata
    for name, code in zip(COLUMNS, _CODES, strict=True):
        metadata.row_type.fields.add(name=name).type_.code = code
    return metadata


def _rows(numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> bytes:
    """Return rows on the wire: copies of one, into which Id, Name and Amount are written."""
    row = PartialResultSetPb()
    row.values.extend(map(value, (str(FIRST_ID), f"customer {FIRST_ID}")))
    row.values.add().number_value = 0.0
    row.values.add().string_value = "x" * 400
    one = row.SerializeToString()
    made = np.tile(np.frombuffer(one, np.uint8), (len(numbers), 1))
    digits = (numbers + FIRST_ID)[:, None] // 10 ** np.arange(_DIGITS)[::-1] % 10 + ord("0")
    identifier = one.index(b"%d" % FIRST_ID)
    name = one.index(b"%d" % FIRST_ID, identifier + 1)
    amount = name + _DIGITS + one[name + _DIGITS :].index(bytes(8))
    for place in (identifier, name):
        made[:, place : place + _DIGITS] = digits
    made[:, amount : amount + 8] = (numbers / 7).view(np.uint8).reshape(len(numbers), 8)
    return made.tobytes()
