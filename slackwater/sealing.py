"""Texts with secrets, sealed for their way to Spark's workers.

The options of a source and the functions that tasks call are in Spark's plans, which it logs, shows
and broadcasts. So a text that holds a secret is encrypted there. The key comes from another text,
which is never sent with them: on the driver's machine it is in a file of this process alone, new at
each start; on a cluster it is the secret by which Spark's processes authenticate.
"""

import atexit
import base64
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slackwater.own_error import OwnError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

# Spark's name of the variable with the application's secret in an executor.
_OF_EXECUTORS: Final = "_SPARK_AUTH_SECRET"
_PREFIX: Final = "sealed:"
_BETWEEN_FILES: Final = ","
_INFO: Final = b"slackwater: options and functions of Spark's tasks"


class UnsealError(OwnError):
    """A sealed text has no key here."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key with which texts are sealed.

    Attributes:
        secret: any text that is hard to guess.
        files: that hold it, on the machines that have them.
    """

    secret: str
    files: tuple[str, ...]


class _Own:
    """This process's key; without a secret, nothing is sealed."""

    key: Key | None = None


def seal(text: str) -> str:
    """Return a sealed text, which unseal() turns back where the key is known."""
    key = _Own.key or use_key()
    if not key.secret:
        return text
    token = _fernet(key.secret).encrypt(text.encode()).decode()
    return f"{_PREFIX}{_BETWEEN_FILES.join(key.files)}:{token}"


def unseal(text: str) -> str:
    """Return the content of a sealed text; any other text is returned as it is.

    Raises:
        UnsealError: this machine has no key for it.
    """
    if not text.startswith(_PREFIX):
        return text
    from cryptography.fernet import InvalidToken

    files, _, token = text.removeprefix(_PREFIX).rpartition(":")
    for secret in _secrets(files.split(_BETWEEN_FILES)):
        try:
            return _fernet(secret).decrypt(token).decode()
        except InvalidToken:
            continue
    raise UnsealError(
        f"neither a file that this worker can read ({files}) nor its environment has the secret"
        " with which the driver sealed its options.",
        "See what docs/security.md says of executors",
    )


def use_key(secret: str | None = None, files: Sequence[str] = ()) -> Key:
    """Seal with a key from now on, which a file of this process alone holds, too.

    Args:
        secret: that the workers' machines have; None for a new one, if they are on this machine.
        files: that hold it there.

    Raises:
        OSError: there is no place for the file.
    """
    text = secret or secrets.token_hex(32)
    folder = tempfile.mkdtemp(prefix="slackwater-key-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, "key")
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    _Own.key = Key(text, (str(file), *files))
    return _Own.key


def seal_nothing() -> None:
    """Seal nothing from now on: the workers' machines have no secret."""
    _Own.key = Key("", ())


def _secrets(files: Sequence[str]) -> list[str]:
    """Return the secrets that this process can learn."""
    texts = []
    for file in files:
        try:
            content = Path(file).read_bytes()
        except OSError:
            continue
        # Spark on Kubernetes takes a file's bytes in base64 as the secret.
        texts += [content.decode(errors="replace").strip(), base64.b64encode(content).decode()]
    of_executor = os.environ.get(_OF_EXECUTORS)
    return [*texts, *([of_executor] if of_executor else [])]


@lru_cache(maxsize=8)
def _fernet(secret: str) -> "Fernet":
    from cryptography.fernet import Fernet

    digest = hashlib.blake2b(_INFO, key=hashlib.sha512(secret.encode()).digest(), digest_size=32)
    return Fernet(base64.urlsafe_b64encode(digest.digest()))
