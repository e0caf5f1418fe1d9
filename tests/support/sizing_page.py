"""The tables of docs/sizing.md that say what an object store's requests cost."""

import re
from typing import Final

from tests.support.repository import DOCS

PAGE: Final = DOCS / "sizing.md"
# The kinds of requests, as the page has them, each with those of a store's API.
KINDS: Final = {
    "PUT": ("PUT",),
    "LIST": ("LIST",),
    "GET, HEAD": ("GET", "HEAD"),
    "DELETE": ("DELETE",),
}
TOGETHER: Final = "together"


def table(first_heading: str) -> dict[str, dict[str, str]]:
    """Return a table's cells, by the first cell of the row and by the heading of the column."""
    rows: list[list[str]] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if rows and not line.startswith("|"):
            break
        if rows or (line.startswith("|") and cells[0] == first_heading):
            rows.append(cells)
    assert rows, f"{PAGE} has no table {first_heading!r}"
    heading = rows[0][1:]
    return {row[0]: dict(zip(heading, row[1:], strict=True)) for row in rows[2:]}


def requests_of_an_epoch() -> dict[str, dict[str, float]]:
    """Return the requests of an epoch, by the format as the page names it and by kind."""
    return {name: _numbers(row) for name, row in table("requests of an epoch").items()}


def prices() -> dict[str, dict[str, float]]:
    """Return the dollars for 1,000 requests, by the store and by kind."""
    of_stores = {}
    for store, row in table("dollars for 1,000 requests").items():
        numbers = _numbers(row)
        of_stores[store] = {
            kind: next(price for heading, price in numbers.items() if kind in _kinds_in(heading))
            for kind in KINDS
        }
    return of_stores


def _kinds_in(heading: str) -> list[str]:
    return [kind for kind in KINDS if set(kind.split(", ")) <= set(re.split(r",\s*", heading))]


def _numbers(row: dict[str, str]) -> dict[str, float]:
    return {name: float(cell) for name, cell in row.items()}
