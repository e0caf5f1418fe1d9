"""Partition queries that stay open, thousands of them, in one event loop.

A thread for each would cost more than their messages do. grpcio's two interfaces do not share
channels, so there are channels of their own here; the session is that of a Connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import google.auth
import grpc.aio
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport

from slackwater.reader.transport.channels import (
    EXECUTE_STREAMING_SQL,
    SCOPES,
    SERVICE_HOST,
    STREAMS_PER_CHANNEL_MAX,
    channel_options,
)
from slackwater.reader.transport.connection import Connection, Metadata
from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.reader.transport.statement import Statement

# Thousands of streams may be waiting at the same time.
_CHANNEL_OPTIONS: Final = channel_options(64 * 1024)


class OpenStreams:
    """Streams of one database, on as many channels as they need.

    Args:
        connection: whose session and request options the queries have.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stubs: list[Callable[..., Any]] = []
        self._running: list[int] = []
        self._credentials: Any = None

    async def messages(self, statement: Statement) -> AsyncIterator[bytes]:
        """Yield the serialized PartialResultSets of a query as they come.

        Raises:
            ReaderError: there is no session.
            grpc.RpcError: the call failed.
        """
        # It may have to look for credentials and make a session, which wait for others.
        request, metadata = await asyncio.to_thread(self._request, statement)
        channel = self._channel()
        call = self._stubs[channel](request.SerializeToString(), metadata=metadata)
        self._running[channel] += 1
        try:
            async for message in call:
                yield message
        except CALL_ERRORS as error:
            self._connection.forget_session_if_lost(error)
            raise
        finally:
            self._running[channel] -= 1
            call.cancel()

    def _request(self, statement: Statement) -> tuple[Any, Metadata]:
        if self._credentials is None and not self._connection.change_stream.emulator_host:
            self._credentials, _ = google.auth.default(scopes=SCOPES)
        return self._connection.stream_request(statement)

    def _channel(self) -> int:
        """Return the number of a channel that has room for another stream."""
        for number, running in enumerate(self._running):
            if running < STREAMS_PER_CHANNEL_MAX:
                return number
        self._stubs.append(self._open_channel().unary_stream(EXECUTE_STREAMING_SQL))
        self._running.append(0)
        return len(self._running) - 1

    def _open_channel(self) -> grpc.aio.Channel:
        host = self._connection.change_stream.emulator_host
        if host:
            return grpc.aio.insecure_channel(host, options=_CHANNEL_OPTIONS)
        return SpannerGrpcAsyncIOTransport.create_channel(
            SERVICE_HOST, credentials=self._credentials, scopes=SCOPES, options=_CHANNEL_OPTIONS
        )
