"""Certificates of a cluster: its authority, its API server and those who use it."""

import datetime
import ipaddress
import itertools
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS: Final = 2


class Authority:
    """Signs certificates, which are files in a folder.

    Args:
        folder: for the certificates and their keys.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test cluster")
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self, name: str, user: str, group: str = "", hosts: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Write a certificate and its key; return the files.

        Args:
            name: how the files' names begin.
            user: as the API server names who has it.
            group: the user's, if any.
            hosts: the names and addresses of a server; without any it is a client's.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(_name(user, group), key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        file = f"{name}-{next(self._numbers)}"
        certificate = self._folder / f"{file}.crt"
        certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        return certificate, write_key(self._folder / f"{file}.key", key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(days=_DAYS),
        )


def service_account_keys(folder: Path) -> tuple[Path, Path]:
    """Write the key that signs service accounts' tokens, and its public half; return the files."""
    key = rsa.generate_private_key(65_537, 2_048)
    public = folder / "service-accounts.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return write_key(folder / "service-accounts.key", key), public


def write_key(file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Path:
    """Write a private key that only its owner can read; return the file."""
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


def _name(user: str, group: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
