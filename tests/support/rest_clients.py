"""What Iceberg's clients need for the object stores of the tests."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from tests.support import fake_gcs
from tests.support.object_stores import ServedStore, s3

# Of Iceberg in Java.
VERSION: Final = "1.11.0"


class Client(Protocol):
    """What Iceberg's clients need for a store.

    Attributes:
        package: the name of Maven's artifact.
        io: the Java class.
    """

    package: str
    io: str

    def served(self) -> AbstractContextManager[ServedStore]:
        """Serve the store."""

    def options(self, endpoint: str) -> dict[str, str]:
        """Return the properties for the store at an address, as Iceberg in Java has them."""

    def python_options(self, endpoint: str) -> dict[str, str]:
        """Return them as pyiceberg has them."""


class _S3:
    package = "iceberg-aws-bundle"
    io = "org.apache.iceberg.aws.s3.S3FileIO"

    def served(self) -> AbstractContextManager[ServedStore]:
        return s3()

    def options(self, endpoint: str) -> dict[str, str]:
        return {
            "s3.endpoint": endpoint,
            "s3.path-style-access": "true",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "client.region": "us-east-1",
        }

    def python_options(self, endpoint: str) -> dict[str, str]:
        return self.options(endpoint)


class _Gcs:
    package = "iceberg-gcp-bundle"
    io = "org.apache.iceberg.gcp.gcs.GCSFileIO"

    def served(self) -> AbstractContextManager[ServedStore]:
        return fake_gcs.cloud_storage()

    def options(self, endpoint: str) -> dict[str, str]:
        return {
            "gcs.project-id": "p",
            "gcs.service.host": endpoint,
            "gcs.no-auth": "true",
        }

    def python_options(self, endpoint: str) -> dict[str, str]:
        # pyarrow does without a token only if it has one.
        token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": str(2**42)}
        return {"gcs.service.host": endpoint, **token}


CLIENTS: Final[Mapping[str, Client]] = {"s3": _S3(), "gs": _Gcs()}
