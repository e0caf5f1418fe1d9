"""The errors of the metadata store, each with a hint at what to do about it.

StateError
|- StoreUrlError         user: the URL is malformed or names a driver that is not installed
|- StoreUnreachableError world: the store does not answer
|  `- StoreMissingError  world: there is no store at the URL yet, or not from here
|- StoreRefusedError     world: the store answers, but refuses the operation
|- NewerSchemaError      user: a later version of this program made the store
|- PipelineMismatchError user: the pipeline's name is used for another change stream
|- PlanMissingError      world: the store went back, or the tasks reach another one
|- LineageMissingError   world: the lineage was replaced under a task that was still running
|- StoreBehindError      world: the store has gone back to an earlier state
|- AlreadySealedError    world: another attempt at a task was sealed
|- LeaseLostError        world: the pipeline has another owner now
|- ContradictionError    world: two different ends of one partition were seen
`- ScanIncompleteError   user: a scan was to end before all of it was in the output
"""

from slackwater.own_error import OwnError, UserError


class StateError(OwnError):
    """The root of the store's errors."""


class StoreUrlError(StateError, UserError):
    """The store's URL can't be used: correct state.url."""


class StoreUnreachableError(StateError):
    """The store does not answer: check that it runs and that the URL is right."""


class StoreMissingError(StoreUnreachableError):
    """Nothing has made a store at the URL: no pipeline has run, or this is another machine."""


class StoreRefusedError(StateError):
    """The store refuses an operation: check the user's rights and that it is a Slackwater store."""


class NewerSchemaError(StateError, UserError):
    """A later version of this program made the store: upgrade."""


class PipelineMismatchError(StateError, UserError):
    """The pipeline's name is used for another change stream: choose another name."""


class PlanMissingError(StateError):
    """The plan is not in the store: it went back, or an executor reaches another store.

    The epoch is planned again, which helps after a failover of the store, and not otherwise.
    """


class LineageMissingError(StateError):
    """A partition that ended is not in the store: another planner has replaced the lineage."""


class StoreBehindError(StateError):
    """The store went back to an earlier state, as by a failover: the epoch is planned again."""


class AlreadySealedError(StateError):
    """Another attempt at a task was sealed, and reads differ: the epoch is planned again."""


class LeaseLostError(StateError):
    """The pipeline has another owner now: writes of the former owner are refused."""


class ContradictionError(StateError):
    """Two different ends of one partition were seen: report it; nothing was skipped."""


class ScanIncompleteError(StateError, UserError):
    """A scan was to end before all of it was in the output: report it; a resume continues it."""
