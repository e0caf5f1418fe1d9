"""The metadata store: pipelines, partitions and their lineage, plans, epochs.

Any number of processes may open one store. The lineage in it can be read again from the change
stream at a low watermark. The epochs in it serve monitoring and choose the next epoch's span.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from slackwater.secrecy import masked
from slackwater.state import schema
from slackwater.state import spanner_dialect as spanner
from slackwater.state.engine import make_engine, snapshot_options
from slackwater.state.errors import (
    PipelineMismatchError,
    StoreRefusedError,
    StoreUnreachableError,
)
from slackwater.state.lineage_rows import delete_partitions, read_partitions, replace_lineage
from slackwater.state.models import (
    DesiredState,
    Partition,
    PartitionKey,
    Pipeline,
    PipelineState,
)
from slackwater.state.tables import HEAD, pipelines
from slackwater.state.transaction import Transaction

T = TypeVar("T")

_PATIENCE_S: Final = 30.0
_OPEN_PATIENCE_S: Final = 5.0
# PostgreSQL's codes: serialization failure, deadlock, idle in a transaction (this process froze).
_RETRYABLE_STATES: Final = frozenset({"40001", "40P01", "25P03"})


class Store:
    """An open metadata store; thread-safe. Open one in each process, after any fork."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._snapshot = snapshot_options(engine)

    @classmethod
    def open(cls, url: str, *, migrate: bool) -> "Store":
        """Open the store at a SQLAlchemy URL.

        Args:
            url: sqlite:///... or postgresql+psycopg://...
            migrate: True to create or upgrade the schema; otherwise it must exist.

        Raises:
            StoreUrlError: the URL can't be used.
            StoreUnreachableError: the store does not answer within 5 s.
            StoreRefusedError: it answers, but can't be read or migrated.
            NewerSchemaError: a later version of this program created the schema.
            StoreMissingError: migrate is False and the store does not exist.
        """
        store = cls(make_engine(url, create=migrate))
        if migrate and store.is_on_spanner:
            store.make_on_spanner()
        elif migrate:
            store.write(lambda c: schema.migrate(c, store.url), patience_s=_OPEN_PATIENCE_S)
        else:
            store.read(lambda c: schema.check(c, store.url), patience_s=_OPEN_PATIENCE_S)
        return store

    @property
    def url(self) -> str:
        """The store's URL without its password."""
        return masked(self._engine.url.render_as_string(hide_password=True))

    @property
    def is_on_spanner(self) -> bool:
        """True if the store is a Spanner database."""
        return self._engine.url.get_backend_name() == spanner.NAME

    def make_on_spanner(self) -> None:
        """Create the schema in a Spanner database, or check the one that exists.

        Raises:
            StateError: as in open().
        """

        def attempt() -> None:
            with self._engine.connect() as connection:
                version = schema.version(connection)
                if version is not None:
                    schema.check(connection, self.url)
            if version != HEAD:
                spanner.make_tables(self._engine)

        self._retried(attempt, spanner.DDL_PATIENCE_S)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    # Pipelines

    def pipelines(self) -> list[Pipeline]:
        """Return all pipelines, ordered by name."""
        rows = self.read(lambda c: c.execute(sa.select(pipelines).order_by(pipelines.c.name)).all())
        return [_pipeline(row) for row in rows]

    def pipeline(self, name: str) -> Pipeline | None:
        """Return a pipeline; None if the store does not have it."""
        row = self.read(
            lambda c: c.execute(sa.select(pipelines).where(pipelines.c.name == name)).first()
        )
        return None if row is None else _pipeline(row)

    def ensure_pipeline(self, name: str, source: str) -> Pipeline:
        """Return the pipeline of this name; create it if it is new.

        Raises:
            PipelineMismatchError: the pipeline reads another change stream.
        """

        def work(connection: sa.Connection) -> Pipeline:
            # In one transaction: the store may be lost before the next one.
            same = sa.select(pipelines).where(pipelines.c.name == name)
            if connection.execute(same).first() is None:
                row = {
                    "name": name,
                    "source": source,
                    "desired_state": DesiredState.RUNNING.value,
                    "is_paused": False,
                    "generation": 0,
                    "heartbeat": 0,
                    "state_reason": "",
                }
                connection.execute(sa.insert(pipelines), row)
            return _pipeline(connection.execute(same).one())

        pipeline = self.pipeline(name) or self.write(work)
        if pipeline.source != source:
            raise PipelineMismatchError(
                f"pipeline {name!r} in {self.url} reads {pipeline.source}, not {source}.",
                "Give this pipeline another name",
            )
        return pipeline

    def request(self, name: str, desired: DesiredState) -> None:
        """Set what an operator wants of a pipeline; the pipeline's owner polls for it.

        A pause lasts until the pipeline is to run. The process that runs it may be drained or
        stopped meanwhile.

        Args:
            name: the pipeline's name.
            desired: the new desired state.
        """
        values: dict[str, Any] = {"desired_state": desired.value}
        if desired in (DesiredState.PAUSED, DesiredState.RUNNING):
            values["is_paused"] = desired is DesiredState.PAUSED
        self.write(
            lambda c: c.execute(sa.update(pipelines).where(pipelines.c.name == name).values(values))
        )

    def set_desired_state(
        self,
        name: str,
        desired: DesiredState,
        *,
        in_place_of: Collection[DesiredState],
        generation: int,
    ) -> None:
        """Set the desired state of a pipeline, as its owner.

        Args:
            name: the pipeline's name.
            desired: the new desired state. RUNNING leaves a paused pipeline paused.
            in_place_of: change it only from one of these states.
            generation: change it only while the lease has this generation.
        """
        value: Any = desired.value
        if desired is DesiredState.RUNNING:
            value = sa.case((pipelines.c.is_paused, DesiredState.PAUSED.value), else_=value)
        statement = sa.update(pipelines).where(
            pipelines.c.name == name,
            pipelines.c.generation == generation,
            pipelines.c.desired_state.in_([replaced.value for replaced in in_place_of]),
        )
        self.write(lambda c: c.execute(statement.values(desired_state=value)))

    def set_state(self, name: str, state: PipelineState, reason: str, since_ns: int) -> None:
        """Record the state of a pipeline, for monitoring.

        Args:
            name: the pipeline's name.
            state: its state, as its owner reports it.
            reason: why it failed and what to do about it; empty if it did not fail.
            since_ns: when the state began, by the owner's clock.
        """
        values = {"state": state.value, "state_reason": masked(reason)}
        self._update_pipeline(name, **values, state_since_ns=since_ns)

    def _update_pipeline(self, name: str, **values: Any) -> None:
        statement = sa.update(pipelines).where(pipelines.c.name == name).values(**values)
        self.write(lambda c: c.execute(statement))

    # Lineage

    def partitions(self, pipeline: str) -> list[Partition]:
        """Return all partitions of a pipeline that the store has, ordered by start."""
        return self.read(lambda c: read_partitions(c, pipeline))

    def replace_partitions(
        self,
        pipeline: str,
        alive: Sequence[Partition],
        *,
        mode: str | None = None,
        generation: int | None = None,
    ) -> None:
        """Remove the pipeline's lineage, and start a new one with these partitions.

        Args:
            pipeline: the pipeline's name.
            alive: the partitions; they start at the low watermark at which they were found.
            mode: the partition mode of the change stream; None if it does not matter.
            generation: the generation of the caller's lease; None if it has no lease.

        Raises:
            LeaseLostError: the pipeline's generation is not this one.
        """

        def work(connection: sa.Connection) -> None:
            Transaction(connection).require_generation(pipeline, generation)
            replace_lineage(connection, pipeline, alive, mode)

        self.write(work)

    def add_partitions(
        self, pipeline: str, alive: Sequence[Partition], *, generation: int | None = None
    ) -> None:
        """Add partitions that a pipeline has to read besides those that it has.

        Raises:
            LeaseLostError: the pipeline's generation is not this one.
            ContradictionError: the store has one of them with another start.
        """

        def work(transaction: Transaction) -> None:
            transaction.require_generation(pipeline, generation)
            recorded = transaction.partitions(pipeline, [p.key for p in alive])
            transaction.record_partitions(pipeline, alive, recorded)

        self.run(work)

    def remove_partitions(
        self,
        pipeline: str,
        keys: Collection[PartitionKey],
        starts_since_ns: int,
        *,
        generation: int | None = None,
    ) -> None:
        """Remove partitions, also as parents of others.

        Args:
            pipeline: the pipeline's name.
            keys: the partitions' keys.
            starts_since_ns: as in Pipeline, from now on; it never goes back.
            generation: the generation of the caller's lease; None if it has no lease.

        Raises:
            LeaseLostError: the pipeline's generation is not this one: partitions finished
                for a former owner may have to be read by the new one.
        """
        since = pipelines.c.starts_since_ns

        def work(connection: sa.Connection) -> None:
            Transaction(connection).require_generation(pipeline, generation)
            delete_partitions(connection, pipeline, keys)
            connection.execute(
                sa.update(pipelines)
                .where(pipelines.c.name == pipeline, since < starts_since_ns)
                .values(starts_since_ns=starts_since_ns)
            )

        if keys:
            self.write(work)

    # Transactions

    def run(self, work: Callable[[Transaction], T], *, patience_s: float = _PATIENCE_S) -> T:
        """Run work in one read-write transaction; work is run again as a whole after a collision.

        Raises:
            StoreUnreachableError: the store did not answer for patience_s.
            StoreRefusedError: it answered, but refused the operation.
        """
        return self.write(lambda c: work(Transaction(c)), patience_s=patience_s)

    def write(self, work: Callable[[sa.Connection], T], *, patience_s: float = _PATIENCE_S) -> T:
        """Run work in one read-write transaction, as run() does; for the modules of this package.

        Raises:
            StateError: as in run().
        """

        def attempt() -> T:
            with self._engine.connect() as connection:
                connection = connection.execution_options(slackwater_write=True)
                with connection.begin():
                    return work(connection)

        return self._retried(attempt, patience_s)

    def read(self, work: Callable[[sa.Connection], T], *, patience_s: float = _PATIENCE_S) -> T:
        """Run work in one transaction that reads a snapshot of the store.

        Raises:
            StateError: as in run().
        """

        def attempt() -> T:
            with self._engine.connect() as connection:
                connection = connection.execution_options(**self._snapshot)
                with connection.begin():
                    return work(connection)

        return self._retried(attempt, patience_s)

    def _retried(self, attempt: Callable[[], T], patience_s: float) -> T:
        try:
            return Retrying(
                retry=retry_if_exception(_is_worth_retrying),
                wait=wait_random_exponential(multiplier=0.01, max=2),
                stop=stop_after_delay(patience_s),
                reraise=True,
            )(attempt)
        except (OperationalError, InterfaceError) as error:
            raise StoreUnreachableError(
                f"the metadata store {self.url} does not answer: {_first_line(error)}.",
                "Check that it runs and has a connection left for each task, that the URL is right"
                " and that the user may create tables",
            ) from error
        except DBAPIError as error:
            raise self._refused(_first_line(error)) from error
        except Exception as error:
            if not spanner.is_spanner_error(error):
                raise
            if spanner.is_retryable(error):
                raise StoreUnreachableError(
                    f"the metadata store {self.url} does not answer: {_first_line(error)}.",
                    "Check the network and the service",
                ) from error
            raise self._refused(_first_line(error)) from error

    def _refused(self, reason: str) -> StoreRefusedError:
        return StoreRefusedError(
            f"the metadata store {self.url} refuses: {reason}.",
            "Check that it is a Slackwater store and that its user may create tables",
        )


def _is_worth_retrying(error: BaseException) -> bool:
    """Return True for a collision with another process, and for a store that may come back.

    IntegrityError: another process inserted the same row first; the next attempt reads it.
    """
    if isinstance(error, IntegrityError | OperationalError | InterfaceError):
        return True
    return spanner.is_retryable(error) or (
        isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _RETRYABLE_STATES
    )


def _first_line(error: Exception) -> str:
    """Return the first line of the database's or its driver's message."""
    said = str(error.orig if isinstance(error, DBAPIError) else error).strip()
    return said.splitlines()[0] if said else "no answer"


def _pipeline(row: Any) -> Pipeline:
    return Pipeline(
        row.name,
        row.source,
        row.low_watermark_ns,
        row.planned_watermark_ns,
        DesiredState(row.desired_state),
        None if row.state is None else PipelineState(row.state),
        row.state_reason,
        row.state_since_ns,
        row.owner,
        row.partition_mode,
        row.starts_since_ns,
    )
