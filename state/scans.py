"""Initial scans: the parts to be read, and those that are in the output already."""

from base64 import b64decode, b64encode
from collections.abc import Sequence

import sqlalchemy as sa

from slackwater.state.errors import ScanIncompleteError
from slackwater.state.models import Scan, ScanPart
from slackwater.state.store import Store
from slackwater.state.tables import scan_parts, scans


def begin_scan(store: Store, scan: Scan, parts: Sequence[ScanPart]) -> None:
    """Record a new scan.

    Raises:
        StateError: the store can't be reached, or has a scan of the pipeline already.
    """
    rows = [
        {
            "pipeline": scan.pipeline,
            "number": part.number,
            "table_name": part.table,
            "partition_token": b64encode(part.token).decode(),
            "chunk": part.chunk,
            "is_done": part.is_done,
        }
        for part in parts
    ]

    def work(connection: sa.Connection) -> None:
        if rows:
            connection.execute(sa.insert(scan_parts), rows)
        connection.execute(
            sa.insert(scans).values(
                pipeline=scan.pipeline,
                at_ns=scan.at_ns,
                session=scan.session,
                transaction_id=b64encode(scan.transaction_id).decode(),
                tables=scan.tables,
                records=scan.records,
                is_done=scan.is_done,
            )
        )

    store.write(work)


def read_scan(store: Store, pipeline: str) -> tuple[Scan, list[ScanPart]] | None:
    """Return a pipeline's scan and its parts, in their order; None if it never began one.

    Raises:
        StateError: the store can't be reached.
    """
    of_parts = sa.select(scan_parts).where(scan_parts.c.pipeline == pipeline)

    def work(connection: sa.Connection) -> tuple[Scan, list[ScanPart]] | None:
        row = connection.execute(sa.select(scans).where(scans.c.pipeline == pipeline)).first()
        if row is None:
            return None
        scan = Scan(
            pipeline,
            row.at_ns,
            row.session,
            b64decode(row.transaction_id),
            row.tables,
            row.records,
            row.is_done,
        )
        return scan, [
            ScanPart(
                part.number,
                part.chunk,
                part.table_name,
                b64decode(part.partition_token),
                part.is_done,
            )
            for part in connection.execute(of_parts.order_by(scan_parts.c.number))
        ]

    return store.read(work)


def share_done(store: Store, pipeline: str) -> float | None:
    """Return the share of a scan's parts that are in the output; None if no scan is under way.

    Raises:
        StateError: the store can't be reached.
    """
    of_pipeline = scan_parts.c.pipeline == pipeline
    count = sa.func.count()
    parts = sa.select(count).select_from(scan_parts).where(of_pipeline)
    is_running = sa.select(scans.c.pipeline).where(
        scans.c.pipeline == pipeline, scans.c.is_done.is_(False)
    )

    def work(connection: sa.Connection) -> float | None:
        if connection.execute(is_running).first() is None:
            return None
        done = connection.execute(parts.where(scan_parts.c.is_done.is_(True))).scalar_one()
        return float(done / max(1, connection.execute(parts).scalar_one()))

    return store.read(work)


def finish_chunk(store: Store, pipeline: str, chunk: int, *, records: int) -> None:
    """Record that the parts of a chunk are in the output; a second call changes nothing.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        chunk: the chunk's number.
        records: the number of its rows.

    Raises:
        StateError: the store can't be reached.
    """
    undone = (
        scan_parts.c.pipeline == pipeline,
        scan_parts.c.chunk == chunk,
        scan_parts.c.is_done.is_(False),
    )

    def work(connection: sa.Connection) -> None:
        if connection.execute(sa.update(scan_parts).where(*undone).values(is_done=True)).rowcount:
            connection.execute(
                sa.update(scans)
                .where(scans.c.pipeline == pipeline)
                .values(records=scans.c.records + records)
            )

    store.write(work)


def finish_scan(store: Store, pipeline: str) -> None:
    """Record that all of a scan is in the output.

    Raises:
        ScanIncompleteError: some of its parts are not.
        StateError: the store can't be reached.
    """
    of_undone = (scan_parts.c.pipeline == pipeline, scan_parts.c.is_done.is_(False))
    statement = sa.update(scans).where(scans.c.pipeline == pipeline).values(is_done=True)
    undone = sa.select(sa.func.count()).select_from(scan_parts).where(*of_undone)

    def work(connection: sa.Connection) -> None:
        refuse_incomplete(pipeline, connection.execute(undone).scalar_one())
        connection.execute(statement)

    store.write(work)


def refuse_incomplete(pipeline: str, undone: int) -> None:
    """Check that all parts of a scan are in the output.

    Args:
        pipeline: the pipeline's name.
        undone: how many parts are not in the output.

    Raises:
        ScanIncompleteError: some are not.
    """
    if undone:
        raise ScanIncompleteError(
            f"{undone} parts of the initial scan of {pipeline!r} are not in the output.",
            "Resume it or run it again: it continues with these parts. Please report this error",
        )
