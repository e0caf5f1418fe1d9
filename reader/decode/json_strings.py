"""A column of texts as JSON strings, made together: few texts have a character to escape."""

from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

# The characters that JSON writes with an escape.
_ESCAPED: Final = '[\x00-\x1f"\\\\]'


def string_literals(texts: pa.Array) -> tuple[pa.Array | str, ...]:
    """Return what makes each text a JSON string, once it is joined.

    Raises:
        ValueError: a text is not UTF-8; only if one has something to escape.
    """
    if not _has_escapes(texts):
        return '"', texts, '"'
    # Before a text that is not UTF-8 is searched.
    texts.validate(full=True)
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    is_escaped = pc.match_substring_regex(texts, _ESCAPED)
    escaped = [orjson.dumps(text).decode() for text in texts.filter(is_escaped).to_pylist()]
    return (pc.replace_with_mask(quoted, is_escaped, pa.array(escaped, pa.string())),)


def _has_escapes(texts: pa.Array) -> bool:
    """Return whether JSON writes any of these texts with an escape, which is rare."""
    _, _, data = texts.buffers()
    if not data:
        return False
    characters = np.frombuffer(data, np.uint8)
    is_special = (characters == ord('"')).any() or (characters == ord("\\")).any()
    return bool(is_special or characters.min() < ord(" "))
