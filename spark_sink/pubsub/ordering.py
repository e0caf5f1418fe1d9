"""The ordering key of a message: messages that share one are delivered in order."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

Ordering = Literal["key", "table", "none"]
_BYTES_MAX: Final = 1_024


def ordering_key(ordering: Ordering, row: Mapping[str, Any]) -> str:
    """Return the ordering key of a message, of which Pub/Sub takes 1,024 bytes; empty for none.

    Args:
        ordering: what the messages share.
        row: of the message, with table_name and key.
    """
    if ordering == "none":
        return ""
    text = str(row["table_name"])
    if ordering == "key":
        text = f"{text} {row['key']}"
    if len(text.encode()) <= _BYTES_MAX:
        return text
    return hashlib.sha256(text.encode()).hexdigest()
