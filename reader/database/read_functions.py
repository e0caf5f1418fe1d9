"""The read functions whose records together are all of a change stream's.

With the option per_placement_tvf, Spanner makes a read function for each placement of the database
besides, or in place of, the stream's own one. The known facts, and their sources:

- They are READ_<stream>_<placement>, and read_proto_bytes_<stream>_<placement> in PostgreSQL. Each
  returns the records of the rows in its placement, and those of the default placement, named
  default, have a function too. Debezium's PerPlacementTvfTestBase writes a row into each of three
  placements on the service and reads each from its own function, with no other function asked.
- A partition is one of a function: "each TVF has its own independent partition token space"
  (Debezium's ChangeStreamDao). So tokens of two functions may be equal. The partitions that a start
  record names are read by the function that returned it: Beam's PartitionMetadataDao and Debezium
  keep the two together. A function refuses the token of another placement with INVALID_ARGUMENT
  and "does not belong to the placement TVF" (Debezium's ChangeStreamDao).
- The option is for partition_mode MUTABLE_KEY_RANGE (both of them read it with that mode only).
- INFORMATION_SCHEMA.ROUTINES "lists all of a database's change stream read functions", but to a
  role with fine-grained access only those that it may execute. INFORMATION_SCHEMA.PLACEMENTS lists
  all placements. (Spanner's documentation, "Information schema".) So the two are compared: a
  placement without a function would be left out of the output, in silence.

A read function is named here by the part of its name after the stream's: a placement, or nothing
for the stream's own function.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.errors import UnsupportedStreamError
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.statement import PLACEMENTS, READ_FUNCTIONS, function_name

OPTION: Final = "per_placement_tvf"
# The function of a stream without that option, which returns all of its records.
OWN_FUNCTION: Final = ""
# The name becomes part of a function's name in SQL, where no parameter can stand.
_PLACEMENT: Final = re.compile(r"[\w-]+", re.ASCII)


def is_per_placement(options: Mapping[str, str]) -> bool:
    """Return True if a stream with these options has a read function for each placement."""
    return options.get(OPTION, "false").lower() != "false"


def read_functions(
    connection: Connection, dialect: Dialect, mode: PartitionMode, streams: Collection[str]
) -> tuple[str, ...]:
    """Return the functions to read a stream by that has one for each placement, in order.

    Args:
        connection: to the database, and the stream.
        dialect: the database's.
        mode: the stream's partition mode.
        streams: the names of the database's change streams.

    Raises:
        UnsupportedStreamError: as functions_of_placements().
        ReaderError: as Connection.query().
    """
    stream = connection.change_stream.change_stream
    own = function_name(dialect, mode, stream)
    others = [function_name(dialect, mode, name) for name in streams if name != stream]
    routines = {row[0] for row in connection.query(READ_FUNCTIONS[dialect])}
    placements = {row[0]: row[1] == "YES" for row in connection.query(PLACEMENTS[dialect])}
    return functions_of_placements(own, routines, placements, others)


def functions_of_placements(
    own: str, routines: Collection[str], placements: Mapping[str, bool], others: Collection[str]
) -> tuple[str, ...]:
    """Return the functions that stand for all placements, each for one, in order.

    The stream's own function stands for the default placement if that has none. Should it return
    other records too, the audit of transactions finds them doubled.

    Args:
        own: the name of the stream's own function.
        routines: the names of all functions that can be seen.
        placements: the names of all placements, each with whether it is the default one.
        others: the names of the other streams' own functions. Theirs may look like this stream's,
            if the name of such a stream begins with this one's.

    Raises:
        UnsupportedStreamError: a placement has no function that can be seen, or a function has no
            placement: some records would not be read.
    """
    longer = [other for other in others if other.startswith(f"{own}_")]
    suffixes = {
        routine.removeprefix(f"{own}_")
        for routine in routines
        if routine.startswith(f"{own}_") and not _is_of(routine, longer)
    }
    functions = set()
    for placement, is_default in placements.items():
        named = {s for s in suffixes if s.lower() == placement.lower()}
        if not named and is_default and own in routines:
            named = {OWN_FUNCTION}
        if not named:
            raise UnsupportedStreamError(
                f"the change stream has {OPTION} = true, and no function {own}_{placement} is"
                f" visible: the records of placement {placement!r} would be missing.",
                "Grant the database role EXECUTE on the read functions of all placements",
            )
        functions |= named
    strange = sorted(s for s in suffixes if s not in functions or not _PLACEMENT.fullmatch(s))
    if strange or not functions:
        raise UnsupportedStreamError(
            f"the change stream has {OPTION} = true, and its functions do not match the database's"
            f" placements: {', '.join(f'{own}_{s}' for s in strange) or 'there are none'}.",
            f"Report it. A stream with {OPTION} = false can be read",
        )
    return tuple(sorted(functions))


def _is_of(routine: str, streams: Collection[str]) -> bool:
    return any(routine == stream or routine.startswith(f"{stream}_") for stream in streams)
