"""The mods of many JSON records, cut out of them without being parsed, where they are plain.

The mods of a record are plain if no value in them is an object, and no text holds "{" other than
before a backslash, as in a JSON document within a text. Each mod then has four opening brackets:
its own, and those of its keys, new_values and old_values. The text before a bracket tells which of
them it is: `,"new_values":{` can't be part of a text, because its quotation marks are not escaped,
so that the first one would end the text and be followed by a name without any.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from slackwater.reader.decode.arrow import mods_array
from slackwater.reader.decode.googlesql_columns import strings
from slackwater.reader.decode.json_structure import PADDING, escapes_in
from slackwater.reader.decode.protobuf_cursor import Bytes, Flags, Ints, matches_at

_BACKSLASH: Final = ord("\\")
_OPEN: Final = ord("{")
_BRACKETS: Final = 4
_KEYS: Final = b'{"keys":{'
_NEW: Final = b'},"new_values":{'
_OLD: Final = b'},"old_values":{'
_NEXT: Final = b"}},{"
_END: Final = b"}}]"


def plain_mods(joined: bytes, begin: Ints, end: Ints) -> tuple[pa.Array, Flags]:
    """Return the lists of mods that are plain, and which these are.

    Args:
        joined: the bytes of many records.
        begin, end: the place of each record's list in it, brackets included, rising.
    """
    buffer, ends = dense_copy(joined, begin, end)
    begins = ends - (end - begin)
    opening = np.flatnonzero(buffer == _OPEN)
    opening = opening[buffer[opening + 1] != _BACKSLASH]
    counts = np.diff(np.searchsorted(opening, np.append(begins, len(buffer))))
    is_plain = (counts > 0) & (counts % _BRACKETS == 0)
    # Another writer might write these escapes differently.
    odd_escapes = escapes_in(buffer[: len(buffer) - len(PADDING)])[1]
    is_plain[np.searchsorted(ends, odd_escapes, side="right")] = False
    brackets = opening[np.repeat(is_plain, counts)].reshape(-1, _BRACKETS)
    owner = np.repeat(np.arange(len(ends)), np.where(is_plain, counts // _BRACKETS, 0))
    spans, is_good = _spans(buffer, brackets, begins[owner], ends[owner])
    is_plain[owner[~is_good]] = False
    chosen = is_plain[owner]
    text = pa.py_buffer(buffer)
    texts = [strings(text, first[chosen], last[chosen] + 1) for first, last in spans]
    return mods_array(counts[is_plain] // _BRACKETS, texts), is_plain


def _spans(
    buffer: Bytes, brackets: Ints, begin: Ints, end: Ints
) -> tuple[list[tuple[Ints, Ints]], Flags]:
    """Return the places of the brackets of each mod's three objects, and which mods are good.

    Args:
        buffer: the lists.
        brackets: the places of the four opening brackets of each mod.
        begin, end: the place of the list of each mod.
    """
    mod, keys, new, old = brackets.T
    keys_end, new_end = new - len(_NEW) + 1, old - len(_OLD) + 1
    is_good = keys == mod + len(_KEYS) - 1
    for places, text in ((mod, _KEYS), (keys_end, _NEW), (new_end, _OLD)):
        is_good &= matches_at(buffer, np.maximum(places, 0), text)
    is_first = np.ones(len(mod), np.bool_)
    is_first[1:] = begin[1:] != begin[:-1]
    is_good &= ~is_first | (mod == begin + 1)
    is_last = np.roll(is_first, -1)
    old_end = np.where(is_last, end - len(_END), np.roll(mod, -1) - len(_NEXT) + 1)
    old_end = np.maximum(old_end, 0)
    is_good &= np.where(
        is_last, matches_at(buffer, old_end, _END), matches_at(buffer, old_end, _NEXT)
    )
    return [(keys, keys_end), (new, new_end), (old, old_end)], is_good


def dense_copy(joined: bytes, begin: Ints, end: Ints) -> tuple[Bytes, Ints]:
    """Return a copy of texts that lie in a buffer, one after the other, and where each ends there.

    Args:
        joined: the buffer.
        begin, end: the place of each text, rising.
    """
    ends = np.cumsum(end - begin)
    buffer = np.zeros((int(ends[-1]) if len(ends) else 0) + len(PADDING), np.uint8)
    if len(ends):
        texts = strings(pa.py_buffer(joined), begin, end, pa.binary())
        buffer[: ends[-1]] = np.frombuffer(texts.buffers()[2], np.uint8)[: ends[-1]]
    return buffer, ends
