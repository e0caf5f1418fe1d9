"""The options with which tasks read, without the code that reads.

Spark loads the source in processes that read nothing. Beside the reading code, each of them would
load the clients of Spanner and of the metadata store for these values.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Where a pipeline starts, besides a time.
NOW: Final = "now"
EARLIEST: Final = "earliest"


class Proof(StrEnum):
    """The evidence that a partition was read through an epoch's end.

    OK: a query with the epoch's end as its end_timestamp ended with status OK. RECORD: a query
    without an end_timestamp went on until it showed a record, a heartbeat or the partition's end
    after the epoch's end; it costs up to a heartbeat interval an epoch.
    """

    OK = "ok"
    RECORD = "record"


class Reading(StrEnum):
    """A way in which an epoch's records come from Spanner.

    BOUNDED: each partition is asked once an epoch, by a query with the epoch's end. CONTINUOUS: a
    process beside the workers keeps a query of each partition open, and tasks take the epoch's
    records from there, as scheduler.continuous explains.
    """

    BOUNDED = "bounded"
    CONTINUOUS = "continuous"


class AuditMode(StrEnum):
    """The treatment of an epoch that breaks what the change stream promises.

    STOP: it is not committed, and read again. LOG: it is committed, and the evidence logged.
    """

    STOP = "stop"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a task that reads; their defaults stand in source_settings.

    Attributes:
        concurrent_queries: partition queries at once, at least 1.
        proof: the evidence that a partition was read through an epoch's end.
        audit: the fate of an epoch that fails the audit.
        traces: record when the longest queries ran.
    """

    concurrent_queries: int
    proof: Proof
    audit: AuditMode
    traces: bool
