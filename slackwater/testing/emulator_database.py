"""Databases on the emulator, for the demo and the tests."""

from collections.abc import Sequence
from typing import Any

import grpc
from google.api_core.exceptions import AlreadyExists
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseAdminClient, DatabaseDialect
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import (
    DatabaseAdminGrpcTransport,
)
from google.cloud.spanner_admin_database_v1.types import (
    CreateDatabaseRequest,
    UpdateDatabaseDdlRequest,
)
from google.cloud.spanner_admin_instance_v1 import InstanceAdminClient
from google.cloud.spanner_admin_instance_v1.services.instance_admin.transports import (
    InstanceAdminGrpcTransport,
)
from google.cloud.spanner_admin_instance_v1.types import CreateInstanceRequest, Instance

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.quoting import identifier


def database_of(stream: ChangeStream, dialect: Dialect | None = None) -> Any:
    """Return google-cloud-spanner's database of a change stream.

    Args:
        stream: names the database, on the emulator of SPANNER_EMULATOR_HOST.
        dialect: the database's, which the client needs for some of its methods.
    """
    client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
    its_dialect = None if dialect is None else getattr(DatabaseDialect, str(dialect))
    instance = client.instance(stream.instance)
    return instance.database(stream.database, database_dialect=its_dialect)


def create_database(stream: ChangeStream, dialect: Dialect, ddl: Sequence[str]) -> None:
    """Create the instance if it is missing, and the database with its schema.

    Args:
        stream: names the database, on an emulator.
        dialect: the database's.
        ddl: CREATE statements, among them the change stream's.
    """
    with grpc.insecure_channel(stream.endpoint.target) as channel:
        _create_instance(channel, stream)
        admin = DatabaseAdminClient(transport=DatabaseAdminGrpcTransport(channel=channel))
        is_postgresql = dialect is Dialect.POSTGRESQL
        admin.create_database(
            request=CreateDatabaseRequest(
                parent=f"projects/{stream.project}/instances/{stream.instance}",
                create_statement=f"CREATE DATABASE {identifier(dialect, stream.database)}",
                database_dialect=str(dialect),
                # A PostgreSQL database can't be created with a schema.
                extra_statements=[] if is_postgresql else list(ddl),
            )
        ).result(timeout=60)
        if is_postgresql:
            update_ddl(stream, ddl, channel)


def update_ddl(
    stream: ChangeStream, ddl: Sequence[str], channel: grpc.Channel | None = None
) -> None:
    """Run DDL statements and wait for them."""
    open_channel = channel or grpc.insecure_channel(stream.endpoint.target)
    try:
        admin = DatabaseAdminClient(transport=DatabaseAdminGrpcTransport(channel=open_channel))
        admin.update_database_ddl(
            request=UpdateDatabaseDdlRequest(database=stream.database_path, statements=list(ddl))
        ).result(timeout=60)
    finally:
        if channel is None:
            open_channel.close()


def _create_instance(channel: grpc.Channel, stream: ChangeStream) -> None:
    admin = InstanceAdminClient(transport=InstanceAdminGrpcTransport(channel=channel))
    try:
        admin.create_instance(
            request=CreateInstanceRequest(
                parent=f"projects/{stream.project}",
                instance_id=stream.instance,
                instance=Instance(
                    config=f"projects/{stream.project}/instanceConfigs/emulator-config",
                    display_name=stream.instance,
                    node_count=1,
                ),
            )
        ).result(timeout=60)
    except AlreadyExists:
        return
