"""The base of all errors of ours: a message, a hint, and whose fault it is."""

import copyreg


class OwnError(Exception):
    """An error of ours; each part of the program has a root of its own below it.

    Attributes:
        message: what is wrong, and where; it never contains a password.
        hint: what to do about it; may be empty.
        user_error: True if the user's input is at fault, so that the exit code is 2; False if the
            environment is, and it is 1.
    """

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs, for any parameters: errors cross from workers to the driver."""
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class UserError(OwnError):
    """An error that the user has to do something about: the further base of many."""

    user_error = True
