"""The registry of envelopes: every concrete Envelope that a module of this folder defines."""

from collections.abc import Mapping
from functools import cache
from typing import Final

from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.modules import classes_by_name

DEFAULT_ENVELOPE: Final = "record"


@cache
def envelopes() -> Mapping[str, type[Envelope]]:
    """Return the envelopes by name, the default first."""
    return classes_by_name(
        "slackwater.spark_sink.envelopes",
        Envelope,  # type: ignore[type-abstract]
        lambda envelope: envelope.name,
        DEFAULT_ENVELOPE,
    )


def with_changefeed_options() -> list[str]:
    """Return the names of the envelopes that take a changefeed's options; see Envelope."""
    return [name for name, envelope in envelopes().items() if envelope.has_changefeed_options]
