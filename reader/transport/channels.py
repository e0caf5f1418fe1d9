"""Channels to an endpoint: their options, and the credentials with which they are opened."""

import ssl
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from google.auth.exceptions import GoogleAuthError

from slackwater.endpoint import Endpoint, file_versions
from slackwater.google_credentials import SPANNER_SCOPES, call_credentials
from slackwater.reader.errors import TlsFileError
from slackwater.reader.transport.receive_loop import current_loop
from slackwater.reader.transport.stream_call import Call, Metadata, start_call

EXECUTE_STREAMING_SQL: Final = "/google.spanner.v1.Spanner/ExecuteStreamingSql"

_log = structlog.get_logger("slackwater.reader")


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


class ChannelCredentials:
    """The credentials of channels to an endpoint, made again when a file of them has changed.

    gRPC keeps those with which a channel was opened. So when certificates are renewed, the next
    calls need another channel: the old one would show the expired certificate as soon as it had to
    connect again.

    Args:
        endpoint: the server.
        scopes: of the tokens that are sent to it.
    """

    def __init__(self, endpoint: Endpoint, scopes: Sequence[str] = SPANNER_SCOPES) -> None:
        self._endpoint = endpoint
        self._scopes = scopes
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, ...], ...] | None = None
        self._warned_of: tuple[tuple[int, ...], ...] | None = None
        self._made: grpc.ChannelCredentials | None = None
        self._version = 0

    def current(self) -> tuple[int, grpc.ChannelCredentials | None]:
        """Return a number that grows with each change, and the credentials; None for no TLS.

        Files that can't be used change nothing: they may be in the middle of being replaced.

        Raises:
            TlsFileError: there were never any that could be used.
            GoogleAuthError: there are no credentials.
        """
        with self._lock:
            versions = file_versions(self._endpoint)
            if versions != self._seen:
                self._make(versions)
            return self._version, self._made

    def _make(self, versions: tuple[tuple[int, ...], ...]) -> None:
        try:
            self._made = _channel_credentials(self._endpoint, self._scopes)
        except (TlsFileError, GoogleAuthError) as error:
            if self._seen is None:
                raise
            # They may become usable without being written again, as by chown.
            if versions != self._warned_of:
                self._warned_of = versions
                _log.warning("changed files of the endpoint are not used", reason=str(error))
        else:
            self._version += 1
            self._seen = versions


_OPTIONS: Final = channel_options(2 * 1024 * 1024)


class Channels:
    """The channels to one server, for many threads.

    Args:
        endpoint: the server.
        scopes: of the tokens that are sent to it.
    """

    def __init__(self, endpoint: Endpoint, scopes: Sequence[str] = SPANNER_SCOPES) -> None:
        self._target = endpoint.target
        self._credentials = ChannelCredentials(endpoint, scopes)
        self._version = 0
        self._lock = threading.Lock()
        self._opened: list[grpc.Channel] = []
        # Another thread may be about to make a call on one of them.
        self._replaced: list[grpc.Channel] = []

    def channel(self, number: int = 0) -> grpc.Channel:
        """Return the channel of a number, opened with the present credentials.

        Raises:
            TlsFileError, GoogleAuthError: there are none.
        """
        with self._lock:
            version, credentials = self._credentials.current()
            if version != self._version:
                self._replaced += self._opened
                self._opened, self._version = [], version
            while len(self._opened) <= number:
                self._opened.append(
                    grpc.insecure_channel(self._target, options=_OPTIONS)
                    if credentials is None
                    else grpc.secure_channel(self._target, credentials, options=_OPTIONS)
                )
            return self._opened[number]

    def start(
        self, method: str, request: bytes, metadata: Metadata, seconds_max: float | None = None
    ) -> Call:
        """Start a call of a method with one request and many answers; see start_call()."""
        loop = current_loop()
        channel = None if loop is None else loop.channel_of(self)
        if channel is None:
            loop, channel = None, self.channel()
        return start_call(channel, loop, method, request, metadata, seconds_max)

    def close(self) -> None:
        """Close them; running calls fail."""
        with self._lock:
            channels = [*self._replaced, *self._opened]
            self._replaced, self._opened = [], []
        # It waits for loops, which may ask for a channel.
        for channel in channels:
            channel.close()


def _channel_credentials(
    endpoint: Endpoint, scopes: Sequence[str]
) -> grpc.ChannelCredentials | None:
    if endpoint.plaintext:
        return None
    tls = grpc.ssl_channel_credentials(*_checked_files(endpoint))
    if endpoint.anonymous:
        return tls
    return grpc.composite_channel_credentials(tls, call_credentials(endpoint, scopes))


def _checked_files(endpoint: Endpoint) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the authorities, the key and the certificate, in gRPC's order.

    gRPC would say of wrong files only that the server can't be reached.
    """
    authorities, certificate, key = (
        None if name is None else _read(setting, name)
        for setting, name in (
            ("ca_certificate", endpoint.ca_certificate),
            ("client_certificate", endpoint.client_certificate),
            ("client_key", endpoint.client_key),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authorities is not None:
        try:
            context.load_verify_locations(cafile=endpoint.ca_certificate)
        except (OSError, ValueError) as error:
            raise _wrong("ca_certificate", endpoint.ca_certificate, error) from error
    if certificate is not None:
        try:
            # An empty password: without one OpenSSL would ask the terminal.
            context.load_cert_chain(
                str(endpoint.client_certificate), endpoint.client_key, password=""
            )
        except (OSError, ValueError) as error:
            raise _wrong("client_certificate", endpoint.client_certificate, error) from error
        _refuse_expired(endpoint, certificate)
    return authorities, key, certificate


def _read(setting: str, name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise TlsFileError(
            f"{setting} {name} can't be read: {error.strerror}.",
            "It has to be there on each machine that reads from Spanner, executors too",
        ) from error


def _wrong(setting: str, name: str | None, error: Exception) -> TlsFileError:
    return TlsFileError(
        f"{setting} {name} can't be used: {error}.",
        "It has to be PEM; a client_key must not be encrypted, and belongs to its certificate",
    )


def _refuse_expired(endpoint: Endpoint, certificate: bytes) -> None:
    """Refuse an expired certificate here: the server would close the connection without a word."""
    from cryptography import x509

    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    if end < datetime.now(UTC):
        raise TlsFileError(
            f"client_certificate {endpoint.client_certificate} expired at {end:%Y-%m-%d %H:%M}Z.",
            "Renew it; a pipeline that runs goes on with the new files by itself",
        )
