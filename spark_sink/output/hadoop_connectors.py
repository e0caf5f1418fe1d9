"""Hadoop's connectors to object stores: the packages and settings with which Spark uses them.

Spark's own formats and its checkpoint need one; files of obstore and delta-rs do not. Their
versions are pinned here, and were tried together with Spark's Hadoop.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

# Of Hadoop, by Spark's version.
_HADOOP: Final = {"4.1": "3.4.2", "4.2": "3.5.0"}
# Of Amazon's client, by Hadoop's: the one that Hadoop was built with.
_AWS_SDK: Final = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}
# The first version that fits Hadoop 3.4: with 3.1 Delta fails (VectoredReadUtils).
_GCS: Final = "4.0.0"
# Spark brings these. Amazon's bundle holds its clients of all services, 640 MB of them.
_EXCLUDED: Final = (
    "software.amazon.awssdk:bundle",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "io.netty:*",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    "org.eclipse.jetty:*",
    "org.slf4j:slf4j-api",
)
_FS: Final = "spark.hadoop.fs"
_AZURE_OAUTH: Final = "org.apache.hadoop.fs.azurebfs.oauth2.WorkloadIdentityTokenProvider"
# Variables of a pod's workload identity, each with its setting.
_AZURE_IDENTITY: Final = {
    "AZURE_TENANT_ID": f"{_FS}.azure.account.oauth2.msi.tenant",
    "AZURE_CLIENT_ID": f"{_FS}.azure.account.oauth2.client.id",
    "AZURE_FEDERATED_TOKEN_FILE": f"{_FS}.azure.account.oauth2.token.file",
}


def _no_credentials(environ: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG001
    """Return nothing: the connector looks for credentials itself."""
    return {}


def _azure_credentials(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings that name the variables which Azure's other clients take.

    Hadoop looks the variables up when it needs them, so that Spark's settings hold no secret.
    """
    account = environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if account and environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        key = f"{_FS}.azure.account.key.{account}.dfs.core.windows.net"
        return {key: "${env.AZURE_STORAGE_ACCOUNT_KEY}"}
    if all(environ.get(variable) for variable in _AZURE_IDENTITY):
        return {
            f"{_FS}.azure.account.auth.type": "OAuth",
            f"{_FS}.azure.account.oauth.provider.type": _AZURE_OAUTH,
            **{key: f"${{env.{variable}}}" for variable, key in _AZURE_IDENTITY.items()},
        }
    return {}


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector, with the packages and settings that Spark needs for it.

    Attributes:
        name: in registry.spark_confs() and `slackwater jars`.
        schemes: of the URLs that it opens.
        artifact: how the name of its jar begins.
        packages: as GROUP:ARTIFACT:VERSION, or with a classifier behind it; {hadoop} and {aws_sdk}
            stand for the versions that go with Spark's.
        conf: Spark's settings.
        credentials: returns more of them for this process's environment.
    """

    name: str
    schemes: tuple[str, ...]
    artifact: str
    packages: tuple[str, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    credentials: Callable[[Mapping[str, str]], Mapping[str, str]] = _no_credentials

    def spark_conf(self, spark_version: str) -> dict[str, str]:
        """Return the Spark settings for the connector; the jars come from Maven.

        Args:
            spark_version: such as 4.1.3. For one that was not tried there are none.
        """
        hadoop = _HADOOP.get(".".join(spark_version.split(".")[:2]))
        if hadoop is None:
            return {}
        versions = {"hadoop": hadoop, "aws_sdk": _AWS_SDK[hadoop]}
        packages = (package.format_map(versions) for package in self.packages)
        return {
            "spark.jars.packages": ",".join(packages),
            "spark.jars.excludes": ",".join(_EXCLUDED),
            **self.conf,
        }

    def is_brought(self, conf: Mapping[str, str], jars: Iterable[str]) -> bool:
        """Return whether the user has their own connector for these URLs.

        Args:
            conf: the user's settings of Spark.
            jars: the names of the user's jars, which may be Maven's coordinates.
        """
        if any(f"{_FS}.{scheme}.impl" in conf for scheme in self.schemes):
            return True
        return any(f":{self.artifact}" in jar or f"{self.artifact}-" in jar for jar in jars)


CONNECTORS: Final = (
    Connector(
        "s3a",
        ("s3a",),
        "hadoop-aws",
        (
            "org.apache.hadoop:hadoop-aws:{hadoop}",
            "software.amazon.awssdk:s3-transfer-manager:{aws_sdk}",
            "software.amazon.awssdk:sts:{aws_sdk}",
        ),
        {
            # Keys in Spark's settings, or else those of Amazon's other clients: variables, the role
            # of a pod's service account, a profile, the machine's role. S3A's own list has no such
            # role and no profile.
            f"{_FS}.s3a.aws.credentials.provider": (
                "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
                "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
                "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
            ),
        },
    ),
    Connector(
        "gs",
        ("gs",),
        "gcs-connector",
        # The other jar lacks its dependencies, and so does its list of them.
        (f"com.google.cloud.bigdataoss:gcs-connector:{_GCS}:shaded",),
        {
            # Hadoop 3.5 has one of its own for gs.
            f"{_FS}.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            # Spark's checkpoint needs this one.
            f"{_FS}.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            # A key file, a user's login, or the machine's account, which Workload Identity is.
            f"{_FS}.gs.auth.type": "APPLICATION_DEFAULT",
        },
    ),
    Connector(
        "abfss",
        ("abfs", "abfss"),
        "hadoop-azure",
        ("org.apache.hadoop:hadoop-azure:{hadoop}",),
        credentials=_azure_credentials,
    ),
)


def connectors_for(paths: Iterable[str]) -> frozenset[str]:
    """Return the names of the connectors that Spark needs for paths."""
    schemes = {path.partition("://")[0] for path in paths if "://" in path}
    return frozenset(c.name for c in CONNECTORS if not schemes.isdisjoint(c.schemes))
