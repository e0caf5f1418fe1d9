"""A door before a PostgreSQL server: connections pass it, and are held back or cut at a message."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from tests.support.tunnels import postgres_socket, tunnel

# By what a client's message has, and by the tag with which the server says that it has done it.
_ASKED: Final = {"COMMIT": b"COMMIT\0", "MERGE": b"MERGE INTO", "COPY": b"COPY "}
_DONE: Final = {"COMMIT": b"COMMIT\0", "MERGE": b"MERGE ", "COPY": b"COPY "}


def _nothing(kind: str, part: str) -> None:
    del kind, part


class PostgresDoor:
    """The door.

    Attributes:
        url: of the database behind it.
        before: called with the kind of a statement and its part, request or answer, before that is
            passed on; if it raises, the connection is cut.
        seen: the kinds and parts.
    """

    def __init__(self) -> None:
        self.url = ""
        self.before: Callable[[str, str], None] = _nothing
        self.seen: list[tuple[str, str]] = []

    def passing(self, data: bytes, is_answer: bool) -> None:
        """Call before() for what data has."""
        part = "answer" if is_answer else "request"
        for kind, text in (_DONE if is_answer else _ASKED).items():
            if text in data:
                self.seen.append((kind, part))
                self.before(kind, part)


@contextmanager
def door_before(url: str) -> Iterator[PostgresDoor]:
    """Open a door before the server of a URL, with a Unix socket, for one of its databases."""
    parsed = sa.make_url(url)
    door = PostgresDoor()
    with tunnel(lambda _: postgres_socket(parsed), door.passing) as port:
        door.url = f"postgresql://postgres@127.0.0.1:{port}/{parsed.database}"
        yield door
