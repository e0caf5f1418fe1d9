"""Partition queries that stay open, thousands of them, in one event loop.

A thread for each would cost more than their messages do. grpcio's two interfaces do not share
channels, so there are channels of their own here; the session is that of a Connection.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import grpc.aio

from slackwater.reader.transport.channels import (
    EXECUTE_STREAMING_SQL,
    ChannelCredentials,
    channel_options,
)
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.reader.transport.statement import Statement

# Spanner's front end allows 100 streams on a connection.
_STREAMS_PER_CHANNEL_MAX: Final = 90
# Thousands of streams may be waiting at the same time.
_CHANNEL_OPTIONS: Final = channel_options(64 * 1024)


@dataclass
class _Channel:
    """A channel, and how many streams run on it.

    Attributes:
        version: of the credentials with which it was opened.
    """

    channel: grpc.aio.Channel
    version: int
    running: int = 0


class OpenStreams:
    """Streams of one database, on as many channels as they need.

    Args:
        connection: whose session and request options the queries have.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._credentials = ChannelCredentials(connection.change_stream.endpoint)
        self._channels: list[_Channel] = []

    async def messages(self, statement: Statement) -> AsyncIterator[bytes]:
        """Yield the serialized PartialResultSets of a query as they come.

        Raises:
            ReaderError: there is no session.
            grpc.RpcError, GoogleAuthError: the call failed.
        """
        # Both wait for others: to make a session, to look for credentials.
        request, metadata = await asyncio.to_thread(self._connection.stream_request, statement)
        current = await asyncio.to_thread(self._credentials.current)
        channel = await self._free_channel(current.version, current.of_channels)
        stub = channel.channel.unary_stream(EXECUTE_STREAMING_SQL)
        call = stub(request.SerializeToString(), metadata=metadata)
        channel.running += 1
        try:
            async for message in call:
                yield message
        except CALL_ERRORS as error:
            self._connection.forget_session_if_lost(error)
            raise
        finally:
            channel.running -= 1
            call.cancel()

    async def _free_channel(
        self, version: int, credentials: grpc.ChannelCredentials | None
    ) -> _Channel:
        """Return a channel with these credentials that has room for another stream."""
        for idle in [c for c in self._channels if c.version != version and not c.running]:
            self._channels.remove(idle)
            await idle.channel.close()
        for channel in self._channels:
            if channel.version == version and channel.running < _STREAMS_PER_CHANNEL_MAX:
                return channel
        target = self._connection.change_stream.endpoint.target
        if credentials is None:
            opened = grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        else:
            opened = grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        self._channels.append(_Channel(opened, version))
        return self._channels[-1]
