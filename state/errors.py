"""What can go wrong with the metadata store, each with what to do about it.

StateError
|- StoreUrlError         user: the URL is malformed or names a driver that is not installed
|- StoreUnreachableError world: the store does not answer
|- StoreRefusedError     world: the store answers, and refuses what it is asked
|- NewerSchemaError      user: a later version of this program made the store
|- PipelineMismatchError user: the pipeline's name is used for another change stream
|- PlanMissingError      user: the tasks reach another store than the planner
|- LineageMissingError   world: the lineage was replaced under a task that was still running
|- LeaseLostError        world: the pipeline has got another owner
`- ContradictionError    world: two different ends of one partition were seen
"""

from __future__ import annotations


class StateError(Exception):
    """Root of the store's errors: message says what and where, hint what to do.

    Messages never hold the URL's password.
    """

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[StateError], tuple[str, str]]:
        """Errors cross from Spark's workers to the driver, so they must pickle."""
        return (type(self), (self.message, self.hint))


class StoreUrlError(StateError):
    """The store's URL can't be used: correct state.url."""

    user_error = True


class StoreUnreachableError(StateError):
    """The store does not answer: check that it runs and that the URL is right."""


class StoreRefusedError(StateError):
    """The store answers and refuses: check the user's rights and that it is a store of ours."""


class NewerSchemaError(StateError):
    """A later version of this program made the store: upgrade."""

    user_error = True


class PipelineMismatchError(StateError):
    """The pipeline's name is used for another change stream: choose another name."""

    user_error = True


class PlanMissingError(StateError):
    """The plan is not in the store: every executor must reach the store that planned it."""

    user_error = True


class LineageMissingError(StateError):
    """A partition that ended is not in the store: another planner found the lineage anew."""


class LeaseLostError(StateError):
    """The pipeline has got another owner: what the former one writes is refused."""


class ContradictionError(StateError):
    """Two different ends of one partition were seen: report it, nothing was skipped."""
