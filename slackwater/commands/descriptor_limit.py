"""The limit of descriptors of a process that runs pipelines."""

from __future__ import annotations

import resource
from typing import Final

# Some programs check each descriptor that they may have, and a hard limit may be a billion.
_DESCRIPTORS_MAX: Final = 65_536


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors, which Spark, stores and sinks need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
