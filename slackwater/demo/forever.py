"""Endless changes to a database on the emulator: `python -m slackwater.demo.forever`.

For the quick start and the compose file. It starts an emulator at 127.0.0.1:9010, unless
SPANNER_EMULATOR_HOST names one that is already running.
"""

import math
import os
import sys
import time
from typing import Final

from slackwater.demo.load import CHANGE_STREAM, Load, ddl
from slackwater.endpoint import plaintext
from slackwater.errors import SlackwaterError
from slackwater.printing import show
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator import running_emulator
from slackwater.testing.emulator_database import create_database

_DIALECT: Final = Dialect.GOOGLE_STANDARD_SQL
_TRANSACTIONS_PER_SECOND: Final = 20
_PORT: Final = 9010
_ALIVE_SECONDS: Final = 10


def main() -> None:
    """Make the database with its change stream, and write until stopped."""
    try:
        with running_emulator(partition_alive_seconds=_ALIVE_SECONDS, port=_PORT) as emulator:
            # The client finds the emulator by this variable.
            os.environ.update(emulator.environment())
            _write(emulator.host)
    except SlackwaterError as error:
        show(f"{error.message} {error.hint}", to_errors=True)
        sys.exit(2 if error.user_error else 1)
    except KeyboardInterrupt:
        return


def _write(host: str) -> None:
    stream = ChangeStream(
        "test-project", "test-instance", "test-database", CHANGE_STREAM, endpoint=plaintext(host)
    )
    create_database(stream, _DIALECT, ddl(_DIALECT))
    show(f"writing to {stream.path}; SPANNER_EMULATOR_HOST={host}", at_once=True)
    load = Load(stream, _DIALECT, seed=time.time_ns())
    load.run(transactions_per_second=_TRANSACTIONS_PER_SECOND, seconds=math.inf)


if __name__ == "__main__":
    main()
