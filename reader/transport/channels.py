"""Channels to an endpoint: their options, and the credentials with which they are opened."""

import os
import ssl
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakSet

import certifi
import grpc
import pycurl
import structlog
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError

from slackwater.endpoint import Endpoint, file_versions
from slackwater.google_credentials import (
    SPANNER_SCOPES,
    call_credentials,
    google_credentials,
    has_token,
    token_headers,
)
from slackwater.reader.errors import TlsFileError
from slackwater.reader.transport.receive_loop import current_loop, wait_aside
from slackwater.reader.transport.stream_call import Call, Metadata, StreamCall
from slackwater.timestamp import seconds_to_ms

_log = structlog.get_logger("slackwater.reader")


Files = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Current:
    """The credentials of an endpoint, as they are now.

    Attributes:
        files: the certificates of the authorities, the client's key, its certificate; None for
            none.
        of_google: adds tokens to calls; None without.
        of_channels: both, for grpcio; None for no TLS.
    """

    files: Files
    of_google: Credentials | None
    of_channels: grpc.ChannelCredentials | None


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
        self._made: Current | None = None

    def current(self) -> Current:
        """Return the present credentials.

        Files that can't be used change nothing: they may be in the middle of being replaced.

        Raises:
            TlsFileError: there were never any that could be used.
            GoogleAuthError: there are no credentials.
        """
        with self._lock:
            versions = file_versions(self._endpoint)
            if self._made is None or versions != self._seen:
                self._made = self._make(versions, self._made)
            return self._made

    def _make(self, versions: tuple[tuple[int, ...], ...], last: Current | None) -> Current:
        try:
            made = _current(self._endpoint, self._scopes)
        except (TlsFileError, GoogleAuthError) as error:
            if last is None:
                raise
            # They may become usable without being written again, as by chown.
            if versions != self._warned_of:
                self._warned_of = versions
                _log.warning("changed files of the endpoint are not used", reason=str(error))
            return last
        self._seen = versions
        return made


@dataclass(slots=True)
class _Opened:
    """The ways to a server that were opened with the same credentials.

    Attributes:
        channel: None before the first single answer.
        handles: requests of libcurl's that no call has.
    """

    current: Current
    channel: grpc.Channel | None = None
    handles: deque[pycurl.Curl] = field(default_factory=deque)


_KEEPALIVE_S: Final = 120
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEPALIVE_S * 1_000),
)
_CONNECT_S: Final = 20
_HEADERS: Final = ("content-type: application/grpc", "te: trailers", "accept:", "expect:")
_ROOTS_VARIABLE: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
# In the order in which grpcio looks.
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")


class Channels:
    """The channels to one server, for many threads: grpcio's, and libcurl's for streams.

    Args:
        endpoint: the server.
        scopes: of the tokens that are sent to it.
    """

    def __init__(self, endpoint: Endpoint, scopes: Sequence[str] = SPANNER_SCOPES) -> None:
        self._target = endpoint.target
        self._url = f"{'http' if endpoint.plaintext else 'https'}://{self._target}"
        self._http_version = (
            pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE
            if endpoint.plaintext
            else pycurl.CURL_HTTP_VERSION_2
        )
        self._credentials = ChannelCredentials(endpoint, scopes)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        # Another thread may be about to make a call on one of them.
        self._replaced: list[grpc.Channel] = []
        self._calls = WeakSet[StreamCall]()

    def channel(self) -> grpc.Channel:
        """Return the channel for single answers, opened with the present credentials.

        Raises:
            TlsFileError, GoogleAuthError: there are none.
        """
        with self._lock:
            opened = self._present()
            if opened.channel is None:
                credentials = opened.current.of_channels
                opened.channel = (
                    grpc.insecure_channel(self._target, options=_OPTIONS)
                    if credentials is None
                    else grpc.secure_channel(self._target, credentials, options=_OPTIONS)
                )
            return opened.channel

    def _present(self) -> _Opened:
        """Return what is opened with the present credentials. With the lock."""
        current = self._credentials.current()
        if self._opened is None or self._opened.current is not current:
            self._replace()
            self._opened = _Opened(current)
        return self._opened

    def _replace(self) -> None:
        if self._opened is not None and self._opened.channel is not None:
            self._replaced.append(self._opened.channel)
        self._opened = None

    def start(
        self, method: str, request: bytes, metadata: Metadata, seconds_max: float | None = None
    ) -> Call:
        """Start a call of a method with one request and many answers.

        The loop of this thread receives the messages, if there is one; otherwise the thread does.

        Args:
            method: its full name.
            request: the serialized message.
            metadata: of the call.
            seconds_max: after which it fails.

        Raises:
            TlsFileError, GoogleAuthError: there are no credentials.
        """
        with self._lock:
            opened = self._present()
        headers = [*_HEADERS, *(f"{name}: {value}" for name, value in metadata)]
        if (credentials := opened.current.of_google) is not None:
            headers += (
                token_headers(credentials)
                if has_token(credentials)
                else wait_aside(partial(token_headers, credentials))
            )
        try:
            handle = opened.handles.pop()
        except IndexError:
            handle = self._handle(opened.current)
        milliseconds = 0 if seconds_max is None else seconds_to_ms(seconds_max)
        if milliseconds:
            headers.append(f"grpc-timeout: {milliseconds}m")
        handle.setopt(pycurl.TIMEOUT_MS, milliseconds)
        handle.setopt(pycurl.URL, f"{self._url}{method}")
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.POSTFIELDS, b"\0" + len(request).to_bytes(4, "big") + request)
        call = StreamCall(handle, current_loop(), opened.handles.append)
        with self._lock:
            self._calls.add(call)
        return call

    def _handle(self, current: Current) -> pycurl.Curl:
        """Return a request of libcurl's for the server, without what a call adds."""
        handle = pycurl.Curl()
        for option, value in (
            (pycurl.HTTP_VERSION, self._http_version),
            (pycurl.POST, 1),
            (pycurl.NOSIGNAL, 1),
            # Calls share a connection, though it is not there yet.
            (pycurl.PIPEWAIT, 1),
            (pycurl.CONNECTTIMEOUT, _CONNECT_S),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.TCP_KEEPIDLE, _KEEPALIVE_S),
            (pycurl.PROXY, _first_of(_PROXY_VARIABLES)),
            (pycurl.NOPROXY, _first_of(_NO_PROXY_VARIABLES)),
            (pycurl.HTTPPROXYTUNNEL, 1),
        ):
            handle.setopt(option, value)
        authorities, key, certificate = current.files
        if authorities is None:
            handle.setopt(pycurl.CAINFO, os.environ.get(_ROOTS_VARIABLE) or certifi.where())
        else:
            handle.setopt(pycurl.CAINFO_BLOB, authorities)
        if key is not None and certificate is not None:
            handle.setopt(pycurl.SSLKEY_BLOB, key)
            handle.setopt(pycurl.SSLCERT_BLOB, certificate)
        return handle

    def close(self) -> None:
        """Close them; running calls fail."""
        with self._lock:
            self._replace()
            channels, self._replaced = self._replaced, []
            for call in self._calls:
                call.cancel()
        for channel in channels:
            channel.close()


def _first_of(variables: Iterable[str]) -> str:
    return next(filter(None, map(os.environ.get, variables)), "")


def _current(endpoint: Endpoint, scopes: Sequence[str]) -> Current:
    if endpoint.plaintext:
        return Current((None, None, None), None, None)
    files = _checked_files(endpoint)
    tls = grpc.ssl_channel_credentials(*files)
    if endpoint.anonymous:
        return Current(files, None, tls)
    credentials = google_credentials(endpoint, scopes)
    both = grpc.composite_channel_credentials(tls, call_credentials(credentials))
    return Current(files, credentials, both)


def _checked_files(endpoint: Endpoint) -> Files:
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
