"""The names in an output: the folders of epochs, and the folder of staged ones."""

from datetime import UTC, datetime
from typing import Final

# Spark, pyarrow and DuckDB ignore names that start with an underscore.
STAGING_FOLDER: Final = "_staging"
COMPACTED: Final = ".compacted"


def epoch_name(low_watermark: datetime, chunk: int | None = None) -> str:
    """Return the folder's name of an epoch, or of a chunk of an initial scan.

    Names sort as the epochs do. Readers take the value for a string: it is neither a number nor a
    date.
    """
    suffix = "" if chunk is None else f".{chunk:06d}"
    return f"epoch={low_watermark.astimezone(UTC):%Y%m%dT%H%M%S.%f}Z{suffix}"


def parse_epoch_name(name: str) -> datetime | None:
    """Return the low watermark in a folder's name, None if it is not an epoch's.

    The folder may hold several epochs, the last of which has given it its name.
    """
    try:
        epoch = name.removesuffix(COMPACTED)
        return datetime.strptime(epoch, "epoch=%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None
