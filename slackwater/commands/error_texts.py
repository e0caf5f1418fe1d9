"""The program's text for an error, and the exit code that it ends with."""

import errno
from typing import Final

from slackwater.pipeline.failures import is_java_text, summary
from slackwater.secrecy import masked
from slackwater.worker_errors import decode

# A path that is wrong, or that another user owns.
_OF_A_PLACE: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR),
        *(errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


def exit_code(error: BaseException) -> int:
    """Return 2 if the user has to change something, 1 otherwise."""
    record = decode(str(getattr(error, "_desc", "")))  # one that a Spark worker raised
    is_user_error = getattr(error, "user_error", False) or (record and record.user_error)
    needs_user = getattr(error, "needs_user", False) or _is_of_a_place(error)
    return 2 if is_user_error or needs_user else 1


def _is_of_a_place(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _OF_A_PLACE and error.filename is not None


def text_of(error: BaseException) -> str:
    """Return an error's message, and its hint on a line below, without secrets."""
    return masked(_text_of(error))


def _text_of(error: BaseException) -> str:
    message = getattr(error, "message", None)
    if isinstance(error, OSError) and _is_of_a_place(error):
        return (
            f"{error.filename} can't be used: {error.strerror}.\n"
            "      Choose another place, or make it one that this user may read and write"
        )
    if message is None:
        # Spark's exceptions ask the session for their text; once it has stopped, only this remains.
        description = str(getattr(error, "_desc", None) or error)
        if (record := decode(description)) is None:
            if is_java_text(description):
                # Without the stack trace.
                return summary(description)
            return f"{type(error).__name__}: {description}"
        return f"{record.message}\n      {record.hint}" if record.hint else record.message
    hint = getattr(error, "hint", "")
    return f"{message}\n      {hint}" if hint else str(message)
