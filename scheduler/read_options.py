"""How tasks read, as the options say it.

Apart from what does it: Spark makes the source known in processes that read nothing, and each
would load the clients of Spanner and of the metadata store for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Proof(StrEnum):
    """What shows that a partition was read through an epoch's end.

    OK: a query with the epoch's end as its end_timestamp ended with status OK. RECORD: a query
    without an end_timestamp went on until it showed a record, a heartbeat or the partition's end
    after the epoch's end; it costs up to a heartbeat interval an epoch.
    """

    OK = "ok"
    RECORD = "record"


class AuditMode(StrEnum):
    """What becomes of an epoch that breaks what the change stream promises: see scheduler.audit."""

    STOP = "stop"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a task reads.

    Attributes:
        concurrent_queries: partition queries at once, at least 1.
        proof: what shows that a partition was read through: see scheduler.reading.
        audit: what becomes of an epoch that fails the audit.
        traces: keep when the longest queries ran.
    """

    concurrent_queries: int = 16
    proof: Proof = Proof.OK
    audit: AuditMode = AuditMode.STOP
    traces: bool = False
