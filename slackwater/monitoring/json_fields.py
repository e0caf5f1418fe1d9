"""The JSON fields of the store's rows: the same on the command line and over HTTP."""

from collections.abc import Sequence
from typing import Any, Final

from slackwater.pipeline.catch_up import CatchUp
from slackwater.reader.bigtable.positions import Position, whole_reads
from slackwater.scheduler.lineage import PartitionState
from slackwater.state.models import Epoch, Gap, OpenQuery, Partition, Pipeline
from slackwater.state.rescan_models import Rescan
from slackwater.state.verified_models import VerifiedTable, proof
from slackwater.timestamp import floor_to_us, format_rfc3339, ms_to_seconds, us_to_ns

_TOKEN_SHOWN: Final = 12


def rfc3339_or_none(timestamp_ns: int | None) -> str | None:
    """Return a timestamp as an RFC 3339 text; None for None."""
    return None if timestamp_ns is None else format_rfc3339(timestamp_ns)


def short_token(label: str) -> str:
    """Return a partition's label with the beginning of its token, and its whole placement."""
    placement, colon, token = label.rpartition(":")
    return f"{placement}{colon}{token[:_TOKEN_SHOWN]}"


def pipeline_fields(pipeline: Pipeline, *, is_owner_dead: bool) -> dict[str, Any]:
    """Return the fields of a pipeline's row in the metadata store."""
    state = "not started" if pipeline.state is None else pipeline.state.value
    reason = pipeline.state_reason or None
    if is_owner_dead:
        # It could not record that itself.
        state, reason = "not running", "its process has died, and no other has taken over"
    return {
        "pipeline": pipeline.name,
        "source": pipeline.source,
        "state": state,
        "since": rfc3339_or_none(pipeline.state_since_ns),
        "reason": reason,
        "wanted": pipeline.desired_state.value,
        "owner": pipeline.owner,
    }


def catch_up_fields(catch_up: CatchUp) -> dict[str, Any]:
    """Return the fields that show whether a pipeline keeps up."""
    return {
        "text": catch_up.text(),
        "pace": catch_up.pace.value,
        "speed": _rounded(catch_up.speed),
        "caught_up_in_seconds": _rounded(catch_up.caught_up_in_s),
        "records_lost_in_seconds": _rounded(catch_up.lost_in_s),
        "level": catch_up.level.value,
        "lag_level": catch_up.lag_level.value,
        "retention_level": catch_up.retention_level.value,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def partition_fields(partition: Partition, state: PartitionState, stalls: int) -> dict[str, Any]:
    """Return the fields of a partition, and how often its queries have stalled."""
    return {
        "token": partition.label,
        "state": state.value,
        "start_timestamp": rfc3339_or_none(partition.start_timestamp_ns),
        "end_timestamp": rfc3339_or_none(partition.end_timestamp_ns),
        "parents": sorted(partition.parents),
        "stalls": stalls,
    }


def position_fields(positions: Sequence[Position]) -> list[dict[str, Any]]:
    """Return the fields of the partitions of a table of Bigtable's, in the order of their keys.

    Args:
        positions: all of them, or those whose replication stands still.
    """
    waiting = set(whole_reads(positions)[1])
    return [
        {
            "keys": position.keys.label,
            # Without one it is read on by the time.
            "has_token": position.token is not None,
            "position_at": _rfc3339_of_us(position.at_us),
            "replication_stands_at": _rfc3339_of_us(position.stands_at_us),
            "waits_for_the_rest_of": position.partition.label if position in waiting else None,
        }
        for position in sorted(positions, key=lambda position: position.keys)
    ]


def _rfc3339_of_us(timestamp_us: int | None) -> str | None:
    return None if timestamp_us is None else format_rfc3339(us_to_ns(timestamp_us))


def query_fields(query: OpenQuery) -> dict[str, Any]:
    """Return the fields of an open partition query."""
    return {
        "partition": query.token,
        "watermark": rfc3339_or_none(query.watermark_ns),
        "seconds": round(ms_to_seconds(query.open_ms), 1),
        "silent_seconds": round(ms_to_seconds(query.silent_ms), 1),
        "stalls": query.stalls,
    }


def epoch_fields(epoch: Epoch) -> dict[str, Any]:
    """Return the fields of a committed epoch."""
    return {
        "start": rfc3339_or_none(epoch.start_ns),
        "low_watermark": rfc3339_or_none(epoch.end_ns),
        "records": epoch.records,
        "late_records": epoch.late_records,
        "transactions": epoch.transactions,
        "partitions": epoch.partitions,
        "seconds": round(epoch.seconds, 3),
        "committed_at": rfc3339_or_none(floor_to_us(epoch.committed_at_ns)),
    }


def gap_fields(gap: Gap) -> dict[str, Any]:
    """Return the fields of a gap: records in (after, through] are lost."""
    return {"after": rfc3339_or_none(gap.start_ns), "through": rfc3339_or_none(gap.end_ns)}


def rescan_fields(rescan: Rescan) -> dict[str, Any]:
    """Return the fields of a table that is read again."""
    return {
        "table": rescan.table,
        "state": rescan.state.value,
        "reason": rescan.reason,
        "requested_at": rfc3339_or_none(floor_to_us(rescan.requested_at_ns)),
        "at": rfc3339_or_none(rescan.at_ns),
        "records": rescan.records,
        "corrected": rescan.corrected,
    }


def verification_fields(
    tables: Sequence[VerifiedTable], low_watermark_ns: int | None
) -> dict[str, Any] | None:
    """Return the fields of the results of `verify --continuous`; None if it never ran."""
    if not tables:
        return None
    proved = proof(tables, low_watermark_ns)
    return {
        "proved_equal_up_to": rfc3339_or_none(proved.equal_at_ns),
        "tables": len(tables),
        "different": list(proved.different),
    }
