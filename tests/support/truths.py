"""Reads the truth of a change stream with none of the code that is tested."""

import pyarrow as pa

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.compare import compare, cut_violations
from slackwater.testing.plain_client import Truth, read_truth
from slackwater.timestamp import format_rfc3339


def truth_of(
    stream: ChangeStream,
    start_ns: int,
    end_ns: int,
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL,
) -> Truth:
    """Return what a plain client reads from the stream between two times."""
    return read_truth(
        project=stream.project,
        instance=stream.instance,
        database=stream.database,
        change_stream=stream.change_stream,
        is_postgresql=dialect is Dialect.POSTGRESQL,
        start=format_rfc3339(start_ns),
        end=format_rfc3339(end_ns),
    )


def require_equal(output: pa.Table, truth: Truth) -> None:
    """Assert that the output has each record of the truth once, no other, in consistent cuts."""
    comparison = compare(output, truth.records)
    wrong = {
        "missing": comparison.missing,
        "unexpected": comparison.unexpected,
        "doubled": comparison.doubled,
    }
    assert not any(wrong.values()), {
        name: (len(records), sorted(map(str, records))[:5]) for name, records in wrong.items()
    }
    assert comparison.equal == len(truth.records) > 0
    assert cut_violations(output) == []
