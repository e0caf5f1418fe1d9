"""The application in a table's transaction identifiers, the same for all writers of a pipeline.

A writer can continue a table that another one began only if both use the same application.
"""

from datetime import datetime

from slackwater.timestamp import datetime_to_rfc3339


def application_of(pipeline: str) -> str:
    """Return the application of a pipeline's epochs."""
    return f"slackwater {pipeline}"


def scan_application(application: str, low_watermark: datetime) -> str:
    """Return the application of the chunks of an initial scan, which has a time of its own."""
    return f"{application} scan {datetime_to_rfc3339(low_watermark)}"
