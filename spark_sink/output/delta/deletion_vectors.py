"""The marks of a data file's deleted rows (Delta's protocol, "Deletion Vectors")."""

import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

# Of the format "RoaringBitmapArray", and of the files that hold such.
_MAGIC: Final = 1_681_511_377
_FILE_VERSION: Final = b"\x01"
_DIGITS: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_UUID_DIGITS: Final = 20


def encoded(positions: pa.Array) -> tuple[str, bytes, dict[str, Any]]:
    """Return the name of a file of marks, its content, and its descriptor in an action.

    Args:
        positions: of the deleted rows, the first being 0; in any order.
    """
    marks = BitMap64(positions.to_numpy(zero_copy_only=False).astype(np.uint64))
    data = struct.pack("<i", _MAGIC) + marks.serialize()
    name = uuid.uuid4()
    checksum = struct.pack(">I", zlib.crc32(data))
    content = _FILE_VERSION + struct.pack(">i", len(data)) + data + checksum
    descriptor = {
        "storageType": "u",
        "pathOrInlineDv": _z85(name.bytes),
        "offset": len(_FILE_VERSION),
        "sizeInBytes": len(data),
        "cardinality": len(marks),
    }
    return _file_name(name), content, descriptor


def file_of(descriptor: Mapping[str, Any]) -> str | None:
    """Return the name of the file with marks, relative to the table; None for those in an action.

    Args:
        descriptor: of the marks in an action; empty for none.
    """
    if descriptor.get("storageType") != "u":
        return None
    text = descriptor["pathOrInlineDv"]
    folder, name = text[:-_UUID_DIGITS], text[-_UUID_DIGITS:]
    file = _file_name(uuid.UUID(bytes=_from_z85(name)))
    return f"{folder}/{file}" if folder else file


def positions(descriptor: Mapping[str, Any], read: Callable[[str], bytes]) -> pa.Array:
    """Return the positions of the deleted rows, ascending.

    Args:
        descriptor: of the marks in an action.
        read: returns the content of a file of the table.

    Raises:
        ValueError: the marks can't be read.
    """
    kind, size = descriptor["storageType"], descriptor["sizeInBytes"]
    file = file_of(descriptor)
    if kind == "i":
        data = _from_z85(descriptor["pathOrInlineDv"])[:size]
    elif file is not None:
        content = read(file)
        begin = descriptor.get("offset", 1) + 4
        data = content[begin : begin + size]
    else:
        raise ValueError(f"a deletion vector of the kind {kind}")
    if len(data) < size or struct.unpack_from("<i", data) != (_MAGIC,):
        raise ValueError("a deletion vector of another format")
    marks = BitMap64.deserialize(data[4:])
    return pa.array(np.fromiter(marks, np.int64, len(marks)))


def _file_name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _z85(content: bytes) -> str:
    """Return bytes, four at a time, as five digits (ZeroMQ's RFC 32)."""
    digits = []
    for (number,) in struct.iter_unpack(">I", content):
        digits += [_DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(digits)


def _from_z85(text: str) -> bytes:
    numbers = []
    for first in range(0, len(text), 5):
        number = 0
        for digit in text[first : first + 5]:
            number = number * 85 + _DIGITS.index(digit)
        numbers.append(number)
    return struct.pack(f">{len(numbers)}I", *numbers)
