"""Finds the envelopes: every concrete Envelope that a module of this folder defines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import isabstract

from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.modules import modules_in


@cache
def envelopes() -> Mapping[str, type[Envelope]]:
    """Return the envelopes by name."""
    classes: dict[str, type[Envelope]] = {}
    for module in modules_in("slackwater.spark_sink.envelopes"):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Envelope) and not isabstract(value):
                assert classes.setdefault(value.name, value) is value  # noqa: S101 - one a name
    return dict(sorted(classes.items()))


def with_timestamp_options() -> list[str]:
    """Return the names of the envelopes that take updated and mvcc_timestamp."""
    return [name for name, envelope in envelopes().items() if envelope.has_timestamp_options]
