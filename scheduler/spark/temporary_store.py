"""The temporary metadata store of a notebook's query, through which later queries go on.

Where a table of Bigtable's is read on can't be read again from Bigtable, and a checkpoint has no
place for it. So each offset names the store of the query that chose it, and a query that goes on
from there makes its own store a link to that one. They all have one file: a plan whose epoch was
written may be an earlier query's.
"""

from pathlib import Path

from sqlalchemy.engine import make_url


def go_on_in(other: str, own: str) -> bool:
    """Make a query's own store a link to the store that an offset names.

    Args:
        other, own: SQLAlchemy URLs of SQLite files.

    Returns:
        False if nothing was changed: they are one file, or the other is gone. The positions are
        then missing, which the planner finds.
    """
    file, link = _file(other).resolve(), _file(own)
    if not file.exists() or link.resolve() == file:
        return False
    new_link = link.with_suffix(".link")
    new_link.symlink_to(file)
    new_link.replace(link)
    return True


def _file(url: str) -> Path:
    return Path(str(make_url(url).database))
