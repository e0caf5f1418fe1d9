"""Where the keys and values of many JSON texts lie, found for all of them at once.

The first step of simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per Second", 2019) with
numpy: quotation marks tell what is inside a string, the brackets outside of strings tell how deep
a place is, and from there keys and values are cut out without parsing what they hold.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from slackwater.reader.decode.protobuf_cursor import Bytes, Flags, Ints, matches_at

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COLON: Final = ord(":")
_SPACE: Final = ord(" ")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
# What tells a square bracket from a curly one.
_CURLY: Final = 0x20
# Escapes that every writer of JSON spells alike.
_PLAIN_ESCAPES: Final = np.isin(np.arange(256), np.frombuffer(rb"\"bfnrt", np.uint8))
# Zeros behind the texts: a key can be looked for wherever one could stand.
PADDING: Final = bytes(64)


class JsonStructure:
    """The brackets, strings and keys of JSON objects that lie one behind the other.

    Args:
        buffer: the texts, with PADDING behind.
        ends: where each of them ends.
        is_spaced: there may be white space between values, to be taken out.

    Attributes:
        buffer, ends: without white space between values.
        key_begin, value_begin: where each key and its value begin.
        key_depth: how many brackets are open there; at most 127, and Spanner's JSON has 80.
        first_key: of each text, its position among the keys; and the number of all.
        escapes: where the escapes in strings stand.
        odd_escapes: those that could be spelled otherwise.

    Raises:
        ValueError: a text is no JSON object.
    """

    def __init__(self, buffer: Bytes, ends: Ints, *, is_spaced: bool) -> None:
        self.buffer, self.ends = buffer, ends
        if is_spaced:
            self._remove_blanks()
        at, byte = self._marks()
        quotes = np.flatnonzero(byte == _QUOTE)
        if len(quotes) % 2:
            raise ValueError("a string has no end")
        if (quotes[1::2] - quotes[::2] != 1).any():
            is_outside = ~_is_inside(byte) | (byte == _QUOTE)
            at, byte = at[is_outside], byte[is_outside]
            quotes = np.flatnonzero(byte == _QUOTE)
        # In ASCII, brackets lie behind the quotation mark and tell open from close by these bits.
        step = (3 - (byte & 6).view(np.int8)) * (byte != _QUOTE)
        depth = np.cumsum(step, dtype=np.int8)
        last = np.searchsorted(at, self.ends) - 1
        if (
            (at[last] != self.ends - 1).any()
            or depth[last].any()
            or (byte[last] != _CLOSE).any()
            or (at[np.concatenate(([0], last[:-1] + 1))] != self.begins).any()
        ):
            raise ValueError("a text is no JSON object")
        closing = quotes[1::2]
        keys = closing[self.buffer[at[closing] + 1] == _COLON]
        self.key_depth = depth[keys]
        self.first_key = np.concatenate(([0], np.searchsorted(keys, last)))
        self.key_begin, self.value_begin = at[keys - 1], at[keys] + 2

    @property
    def begins(self) -> Ints:
        """Where each text begins."""
        return np.concatenate(([0], self.ends[:-1]))

    def _marks(self, *, with_blanks: bool = False) -> tuple[Ints, Bytes]:
        """Brackets and quotation marks that are not escaped: where and which."""
        buffer = self.buffer[: len(self.buffer) - len(PADDING)]
        folded = buffer | _CURLY
        is_mark = (buffer == _QUOTE) | (folded == _OPEN) | (folded == _CLOSE)
        if with_blanks:
            is_mark |= buffer <= _SPACE
        self._find_escapes(buffer)
        is_mark[self.escapes + 1] = False
        at = np.flatnonzero(is_mark)
        return at, buffer[at]

    def _find_escapes(self, buffer: Bytes) -> None:
        """A backslash escapes what follows if an even number of them stands before it."""
        at = np.flatnonzero(buffer == _BACKSLASH)
        self.escapes = self.odd_escapes = at
        if not len(at):
            return
        number = np.arange(len(at))
        begins = np.concatenate(([True], np.diff(at) != 1))
        run_begin = np.maximum.accumulate(np.where(begins, number, 0))
        self.escapes = at[(number - run_begin) & 1 == 0]
        if self.escapes[-1] + 1 == len(buffer):
            raise ValueError("a text ends in an escape")
        escaped = buffer[self.escapes + 1]
        self.odd_escapes = self.escapes[~_PLAIN_ESCAPES[escaped]]

    def _remove_blanks(self) -> None:
        at, byte = self._marks(with_blanks=True)
        blanks = at[~_is_inside(byte) & (byte <= _SPACE)]
        stays = np.ones(len(self.buffer), np.bool_)
        stays[blanks] = False
        self.ends = self.ends - np.searchsorted(blanks, self.ends)
        self.buffer = self.buffer[stays]

    def text_index(self, places: Ints) -> Ints:
        """The number of the text that each place lies in."""
        return np.searchsorted(self.ends, places, side="right").astype(np.int64)

    def key_name(self, key: int) -> bytes:
        """A key's name."""
        return self.buffer[self.key_begin[key] + 1 : self.value_begin[key] - 2].tobytes()

    def have_name(self, keys: Ints, name: bytes) -> Flags:
        """Which of these keys have this name, of at most 32 bytes."""
        return self.matches_at(self.key_begin[keys], b'"' + name + b'":')

    def matches_at(self, places: Ints, text: bytes) -> Flags:
        """At which places this text stands, of at most 40 bytes."""
        return matches_at(self.buffer, places, text)


def _is_inside(byte: Bytes) -> Flags:
    """Behind which of these marks a string is open."""
    # Whether their number is odd survives that it overflows.
    quotes = np.cumsum((byte == _QUOTE).view(np.uint8), dtype=np.uint8)
    return (quotes & 1).view(np.bool_)
