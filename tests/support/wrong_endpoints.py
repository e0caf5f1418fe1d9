"""Wrong set-ups of the endpoint: certificates, keys, and what the other side speaks."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from slackwater.endpoint import EMULATOR_VARIABLE
from tests.support.tls_door import client_files, server_side, tls_door
from tests.support.wrong_set_ups import NOBODY, Sections, SetUp, impatient, source

_YESTERDAY = datetime.now(UTC) - timedelta(days=1)
_EXPIRED: Mapping[str, Any] = {
    "not_before": _YESTERDAY - timedelta(days=9),
    "not_after": _YESTERDAY,
}


@dataclass(frozen=True)
class Behind:
    """What a wrong set-up is made of.

    Attributes:
        authority: signs the server's certificate, and has those of clients that are let in.
        folder: for files.
        door, emulator: HOST:PORT with TLS, and without.
        right: the settings that would work.
    """

    authority: trustme.CA
    folder: Path
    door: str
    emulator: str
    right: Mapping[str, Any]

    def with_client(self, certificate: trustme.LeafCert, **changed: str) -> dict[str, Any]:
        return {**self.right, **client_files(self.folder, certificate), **changed}

    def file(self, name: str, content: str) -> str:
        (self.folder / name).write_text(content)
        return str(self.folder / name)


def at_door(
    says: str,
    remedy: str,
    keys: Callable[[Behind], Mapping[str, Any]] = lambda behind: behind.right,
    *,
    code: int = 2,
    is_mutual: bool = False,
    name: str = "127.0.0.1",
    **validity: Any,
) -> SetUp:
    """A pipeline whose Spanner is behind a door with TLS.

    Args:
        says, remedy, code: as SetUp has them.
        keys: the section source, beside the names.
        is_mutual: the door asks for a certificate.
        name, validity: of the server's certificate.
    """

    @contextmanager
    def world() -> Iterator[Sections]:
        authority, emulator = trustme.CA(), os.environ[EMULATOR_VARIABLE]
        context = server_side(
            authority.issue_cert(name, **validity), authority if is_mutual else None
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            tls_door(emulator, context) as door,
            pytest.MonkeyPatch.context() as patch,
            impatient(),
        ):
            patch.delenv(EMULATOR_VARIABLE)
            trusted = Path(folder, "ca.pem")
            authority.cert_pem.write_to_path(str(trusted))
            right = {"endpoint": door.host, "anonymous": True, "ca_certificate": str(trusted)}
            behind = Behind(authority, Path(folder), door.host, emulator, right)
            yield {"source": keys(behind)}

    return SetUp({}, says, remedy, code, world=world)


def _another_authority(behind: Behind) -> Mapping[str, Any]:
    another = behind.folder / "another.pem"
    trustme.CA().cert_pem.write_to_path(str(another))
    return {**behind.right, "ca_certificate": str(another)}


def _client(behind: Behind, **validity: Any) -> trustme.LeafCert:
    return behind.authority.issue_cert("reader@example.org", **validity)


def _another_key(behind: Behind) -> Mapping[str, Any]:
    another = _client(behind).private_key_pem.bytes().decode()
    return behind.with_client(_client(behind), client_key=behind.file("another.pem", another))


_NAME_AUTHORITY = "in source.ca_certificate"
_PEM = "It has to be PEM; a client_key must not be encrypted"
ENDPOINTS = {
    "an authority that is not trusted": at_door(
        "CERTIFICATE_VERIFY_FAILED", _NAME_AUTHORITY, _another_authority
    ),
    "an authority that is not named": at_door(
        "CERTIFICATE_VERIFY_FAILED",
        _NAME_AUTHORITY,
        lambda behind: {**behind.right, "ca_certificate": None},
    ),
    "a server's certificate that has expired": at_door(
        "certificate has expired", _NAME_AUTHORITY, **_EXPIRED
    ),
    "another server's certificate": at_door(
        "Hostname Verification Check failed", "as its certificate does", name="example.org"
    ),
    "no TLS at the endpoint": at_door(
        "WRONG_VERSION_NUMBER",
        "set source.plaintext",
        lambda behind: {**behind.right, "endpoint": behind.emulator},
    ),
    "TLS at the endpoint": at_door(
        "UNAVAILABLE",
        "that it has no TLS",
        lambda behind: {"endpoint": behind.door, "plaintext": True},
        code=1,
    ),
    "no client's certificate": at_door(
        "UNAVAILABLE", "that it takes the client's certificate", code=1, is_mutual=True
    ),
    "a client's certificate of another authority": at_door(
        "UNAVAILABLE",
        "that it takes the client's certificate",
        lambda behind: behind.with_client(trustme.CA().issue_cert("reader@example.org")),
        code=1,
        is_mutual=True,
    ),
    "a client's certificate that has expired": at_door(
        "expired at",
        "Renew it",
        lambda behind: behind.with_client(_client(behind, **_EXPIRED)),
        is_mutual=True,
    ),
    "another client's key": at_door("mismatch", _PEM, _another_key, is_mutual=True),
    "a client's certificate without a key": at_door(
        "client_certificate and client_key go together",
        "name both files",
        lambda behind: {**behind.right, "client_certificate": "client.pem"},
    ),
    "an authority's file that is missing": at_door(
        "ca_certificate /nonexistent/ca.pem can't be read: No such file",
        "on each machine that reads from Spanner",
        lambda behind: {**behind.right, "ca_certificate": "/nonexistent/ca.pem"},
    ),
    "an authority's file with something else": at_door(
        "can't be used",
        _PEM,
        lambda behind: {**behind.right, "ca_certificate": behind.file("notes.txt", "ask Ann")},
    ),
    "a file without credentials": at_door(
        "is not a valid json file",
        "credentials_file",
        lambda behind: {
            "endpoint": behind.door,
            "credentials_file": behind.file("key.json", "ask Ann"),
        },
    ),
    "an endpoint with a scheme": source(
        "'https://spanner.googleapis.com' is not HOST or HOST:PORT",
        "HOST:PORT",
        endpoint="https://spanner.googleapis.com",
    ),
    "two servers": source(
        "the settings' endpoint is 127.0.0.1:1, and SPANNER_EMULATOR_HOST is",
        "Unset the one that is not meant",
        endpoint=NOBODY,
    ),
}
