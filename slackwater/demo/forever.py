"""A database on the emulator with a change stream, and changes until it is stopped.

`python -m slackwater.demo.forever`, with SPANNER_EMULATOR_HOST set: for the compose file and for
trying a pipeline out.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Final

from google.api_core.exceptions import AlreadyExists, ServiceUnavailable

from reader.change_stream import ChangeStream, Dialect
from slackwater.demo.load import CHANGE_STREAM, Load, ddl
from slackwater.emulator_database import create_database

_DIALECT: Final = Dialect.GOOGLE_STANDARD_SQL
_TRANSACTIONS_PER_SECOND: Final = 20
_WAIT_S: Final = 1.0


def main() -> None:
    """Make the database, unless it is there, and write."""
    host = os.environ.get("SPANNER_EMULATOR_HOST")
    if not host:
        print("SPANNER_EMULATOR_HOST is not set: HOST:PORT of the emulator", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    stream = ChangeStream(
        "test-project", "test-instance", "test-database", CHANGE_STREAM, emulator_host=host
    )
    while True:
        try:
            create_database(stream, _DIALECT, ddl(_DIALECT))
        except ServiceUnavailable:
            time.sleep(_WAIT_S)
        except AlreadyExists:
            print(f"{stream.database_path} is there: whoever made it writes to it")  # noqa: T201
            return
        else:
            break
    print(f"writing to {stream.path}", flush=True)  # noqa: T201
    load = Load(stream, _DIALECT, seed=time.time_ns())
    load.run(transactions_per_second=_TRANSACTIONS_PER_SECOND, seconds=math.inf)


if __name__ == "__main__":
    main()
