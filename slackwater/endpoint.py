"""The server that answers as Spanner, and how a connection to it is protected and authenticated."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slackwater.own_error import UserError

EMULATOR_VARIABLE: Final = "SPANNER_EMULATOR_HOST"
_UNIVERSE: Final = "googleapis.com"
_TLS_PORT: Final = 443
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST: Final = re.compile(r"(?P<name>[^\s/:\[\]]+|\[[0-9a-fA-F:.]+\])(?P<port>:\d{1,5})?")


class EndpointError(UserError):
    """Two servers are named, and one is to be read."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of Spanner. Without any attribute it is the public service's.

    Attributes:
        host: HOST or HOST:PORT, such as a regional endpoint's; None for the service of the universe
            domain.
        plaintext: without TLS, and so without credentials.
        anonymous: with TLS, and without credentials, as Spanner Omni takes it.
        ca_certificate: a PEM file with the certificates of the authorities to trust; None for those
            that Mozilla trusts.
        client_certificate, client_key: PEM files for mutual TLS, with the chain of the certificate;
            both or none. They are read again when they have changed.
        credentials_file: Google's credentials; None for Application Default Credentials.
        impersonate_service_account: the e-mail address of the account to act as; None for none.
        quota_project: the project whose quota is used; None for the credentials' own.
        universe_domain: None for googleapis.com.

    Raises:
        ValueError: some exclude each other, or one needs another.
    """

    host: str | None = None
    plaintext: bool = False
    anonymous: bool = False
    ca_certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    credentials_file: str | None = None
    impersonate_service_account: str | None = None
    quota_project: str | None = None
    universe_domain: str | None = None

    def __post_init__(self) -> None:
        if self.host is not None and not _HOST.fullmatch(self.host):
            raise ValueError(f"endpoint {self.host!r} is not HOST or HOST:PORT")
        if (self.plaintext or self.anonymous) and self.host is None:
            name = "plaintext" if self.plaintext else "anonymous"
            raise ValueError(f"{name} needs an endpoint: the service takes TLS with credentials")
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key go together: name both files")
        tls = {
            "ca_certificate": self.ca_certificate,
            "client_certificate": self.client_certificate,
        }
        of_google = {
            "credentials_file": self.credentials_file,
            "impersonate_service_account": self.impersonate_service_account,
            "quota_project": self.quota_project,
            "universe_domain": self.universe_domain,
        }
        without = "plaintext" if self.plaintext else "anonymous"
        refused = {**(tls if self.plaintext else {}), **(of_google if self.is_anonymous else {})}
        for name, value in refused.items():
            if value is not None:
                raise ValueError(f"{name} does not go with {without}: leave one of them out")

    @property
    def is_anonymous(self) -> bool:
        """True if no credentials are sent."""
        return self.plaintext or self.anonymous

    @property
    def target(self) -> str:
        """HOST:PORT to connect to."""
        host = self.host or f"spanner.{self.universe_domain or _UNIVERSE}"
        match = _HOST.fullmatch(host)
        return host if match is not None and match["port"] else f"{host}:{_TLS_PORT}"


SERVICE: Final = Endpoint()


def file_versions(endpoint: Endpoint) -> tuple[tuple[int, ...], ...]:
    """Return numbers that change when a file of the endpoint's is replaced."""
    names = (
        endpoint.ca_certificate,
        endpoint.client_certificate,
        endpoint.client_key,
        endpoint.credentials_file,
    )
    return tuple(_version(name) for name in names if name is not None)


def _version(file: str) -> tuple[int, ...]:
    try:
        stat = os.stat(file)
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size)


def plaintext(host: str) -> Endpoint:
    """Return the endpoint of a server without TLS, such as an emulator, at HOST:PORT."""
    return Endpoint(host, plaintext=True)


def or_emulator(
    endpoint: Endpoint, environ: Mapping[str, str], variable: str = EMULATOR_VARIABLE
) -> Endpoint:
    """Return the emulator of the environment, which all of Google's clients heed, if there is one.

    Args:
        endpoint: that of the settings, returned without an emulator.
        environ: may name one.
        variable: in which.

    Raises:
        EndpointError: the variable is malformed, or the settings name another server, or the same
            with TLS. Either of them could be the mistake.
    """
    emulator = environ.get(variable)
    if not emulator:
        return endpoint
    if not _HOST.fullmatch(emulator):
        raise EndpointError(f"{variable} {emulator!r} is not HOST:PORT.", "Correct or unset it")
    if endpoint.host is not None and endpoint != plaintext(emulator):
        raise EndpointError(
            f"the settings' endpoint is {endpoint.host}, and {variable} is {emulator}, which has no"
            " TLS.",
            "Unset the one that is not meant",
        )
    return plaintext(emulator)
