"""The options of spark.readStream and spark.read in a notebook, checked."""

import difflib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.source_settings import (
    BigtableNotebookOptions,
    BoundedSettings,
    NotebookOptions,
    options_of,
)
from slackwater.setting_values import reason_of

S = TypeVar("S", bound=BoundedSettings)


def parse_options(
    options: Mapping[str, str],
    environ: Mapping[str, str],
    model: type[NotebookOptions | BigtableNotebookOptions] = NotebookOptions,
) -> SourceOptions[Any]:
    """Return the options of spark.readStream or spark.read, checked.

    Args:
        options: as Spark hands them over; names in any case. An empty text is an option left out.
        environ: may name an emulator.
        model: of the source.

    Raises:
        OptionError: options are missing, unknown or malformed; the message names them.
    """
    texts = {name.lower(): text for name, text in options.items() if text}
    made = checked(model, texts)
    return replace(
        options_of(
            made,
            made,
            environ,
            pipeline=made.pipeline,
            state_url=made.state_url or _temporary_state_url(),
            keep_ms=made.keep,
            traces=made.traces,
            records_epochs=False,
        ),
        is_state_lasting=made.state_url is not None,
        tasks_max=made.tasks,
        table=made.table if isinstance(made, NotebookOptions) else None,
        is_checkpoint_empty=made.checkpoint_is_empty,
    )


def checked(model: type[S], values: Mapping[str, Any]) -> S:
    """Return values as a model has them.

    Raises:
        OptionError: some are missing, unknown or malformed; the message names them.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors()
    unknown, missing = (
        [str(problem["loc"][0]) for problem in problems if problem["type"] == kind]
        for kind in ("extra_forbidden", "missing")
    )
    names = list(model.model_fields)
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        raise OptionError(
            f"{model.source_format} has no option {unknown[0]!r}.",
            f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}",
        )
    if missing:
        raise OptionError(
            f"{model.source_format} needs the option(s) {', '.join(missing)}.",
            f'Set them as in .option("{missing[0]}", "...")',
        )
    # An error about several options has no place.
    places = (f"option {problem['loc'][0]}: " if problem["loc"] else "" for problem in problems)
    reasons = map(add, places, map(reason_of, problems))
    raise OptionError(f"{'; '.join(reasons)}.")


def _temporary_state_url() -> str:
    """Make a store for this query alone: the checkpoint is enough to find its lineage again."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-"))
    return f"sqlite:///{folder / 'state.db'}"
