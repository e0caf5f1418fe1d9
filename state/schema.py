"""The store's schema version: checked at every opening, made or upgraded by the planner."""

from typing import Any, Final

import sqlalchemy as sa

from slackwater.state.errors import NewerSchemaError, StoreMissingError
from slackwater.state.tables import HEAD

_VERSION: Final = sa.text("SELECT version_num FROM alembic_version")
# Any number will do, as long as every process of this program uses it.
_POSTGRESQL_LOCK: Final = 7_255_318_211


def version(connection: sa.Connection) -> str | None:
    """Return the schema's version; None if there is no schema yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    value = connection.execute(_VERSION).scalar()
    return None if value is None else str(value)


def check(connection: sa.Connection, url: str) -> None:
    """Refuse a schema that is not this program's.

    Raises:
        NewerSchemaError: a later version made it.
        StoreMissingError: there is no schema: no pipeline has run, or in another store.
    """
    actual = version(connection)
    if actual is None:
        raise StoreMissingError(
            f"the metadata store {url} is empty.",
            "Every Spark executor must reach the store of the pipeline: on a cluster use a"
            " database server",
        )
    _refuse_newer(actual, url)


def migrate(connection: sa.Connection, url: str) -> None:
    """Create the schema or upgrade it, inside the connection's transaction.

    Raises:
        NewerSchemaError: a later version made it.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_POSTGRESQL_LOCK})"))
    actual = version(connection)
    if actual == HEAD:
        return
    if actual is not None:
        _refuse_newer(actual, url)
    _upgrade(connection)


def _refuse_newer(actual: str, url: str) -> None:
    if actual > HEAD:
        raise NewerSchemaError(
            f"the metadata store {url} has schema {actual}, newer than this program's {HEAD}.",
            "Run the version of Slackwater that made it, or a later one",
        )


def _upgrade(connection: sa.Connection) -> None:
    # Imported where it is needed: alembic takes longer to load than the rest of the store.
    from alembic import command
    from alembic.config import Config

    config: Any = Config()
    config.set_main_option("script_location", "slackwater.state:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
