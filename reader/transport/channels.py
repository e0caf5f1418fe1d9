"""The options that all channels to Spanner share, those of grpc and those of grpc.aio."""

from __future__ import annotations

from typing import Any, Final

SERVICE_HOST: Final = "spanner.googleapis.com:443"
# The second one is for the list of DDL statements.
SCOPES: Final = (
    "https://www.googleapis.com/auth/spanner.data",
    "https://www.googleapis.com/auth/spanner.admin",
)
EXECUTE_STREAMING_SQL: Final = "/google.spanner.v1.Spanner/ExecuteStreamingSql"
# Spanner's front end allows 100 streams on a connection.
STREAMS_PER_CHANNEL_MAX: Final = 90


def channel_options(lookahead_bytes: int) -> tuple[tuple[str, Any], ...]:
    """Return the options of a channel.

    Args:
        lookahead_bytes: how much may wait in a stream that is not read. gRPC would raise this with
            the bandwidth, and sixteen streams held hundreds of megabytes while Spark was busy.
    """
    return (
        ("grpc.max_receive_message_length", -1),
        ("grpc.keepalive_time_ms", 120_000),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", lookahead_bytes),
        # Without a pool of its own, a second channel would share the first one's connection.
        ("grpc.use_local_subchannel_pool", 1),
    )
