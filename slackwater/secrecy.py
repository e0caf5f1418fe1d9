"""The secrets in settings, and the filter that removes them from all text for people.

The filter is applied where text leaves the program: log lines, messages, the page, and the reason
of a failure on its way into the metadata store. It knows the secrets of the settings that this
process has loaded, and the places at which a URL or an option has one, which may be in settings
that can't be loaded.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

SHOWN: Final = "***"
# Names, or parts of names, of settings, options and variables whose values are secret: those of
# PostgreSQL, Kafka and librdkafka, Spark and Hadoop, S3, Cloud Storage and Azure.
SECRET_NAME: Final = re.compile(
    r"passw|secret|token(?!\.(endpoint|url))|credential(?!s?[._](provider|source|type))|private"
    r"|jaas|signature|(access|account|api|shared|master|session|encryption|storage)[._-]?key"
    r"|(^|[._-])(sas|pwd|service_account_key)([._-]|$)|fixed\.token",
    re.IGNORECASE,
)
# Names of values that are not secret, though a part of the name suggests it.
_NO_SECRET: Final = re.compile(
    r"access[._-]?key[._-]?id$|\.(provider|class|type|algorithm|enabled|mechanism|location|path)$"
    r"|token[._-](endpoint|url)|application_credentials$|_file$|\.file$|^(?-i:(OLD)?PWD)$",
    re.IGNORECASE,
)
# In a URL, whose password may hold any character: the text before its last @.
_IN_URL: Final = re.compile(r"""(?<=://)([^/\s:@"']*):([^\s"']+)@""")
_BEFORE_HOST: Final = re.compile(r"""(?:^(?!.*://)|://)[^/\s:@"']*:([^\s"']+)@""")
# An option in a URL, in a JAAS configuration or in JSON, perhaps in quotes that are escaped.
_OPTION: Final = r"(?i)([\w.-]*(?:passw|secret|jaas|pwd)[\w.-]*(?:\\?[\"'])?\s*[=:]\s*)"
_QUOTED: Final = re.compile(_OPTION + r"""(\\?["'])((?:(?!\2).)+)""")
_PLAIN: Final = re.compile(_OPTION + r"""([^\s&;,"'}\]\\]+)""")
# Removing a shorter one would damage ordinary words.
_LENGTH_MIN: Final = 5

_PROGRAM: Final = "slackwater"

_SECRETS: Final[set[str]] = set()


def is_secret(name: str) -> bool:
    """Return whether the value of a setting, an option or a variable of this name is secret."""
    return bool(SECRET_NAME.search(name)) and not _NO_SECRET.search(name)


def keep_secret(values: Mapping[str, Any]) -> None:
    """Remove the secrets among values, by their names, from all text shown from now on.

    A password that is also an ordinary word, such as the user's name, is only removed where
    passwords stand: otherwise that word would be missing from every line.

    Args:
        values: settings or options by name; sections may be nested.
    """
    open_texts = (text for name, text in _texts_in(values) if not is_secret(name))
    shown = " ".join([_PROGRAM, *map(_by_place, map(_without_password, open_texts))])
    for secret in secrets_in(values):
        if secret in shown:
            continue
        forms = {secret, unquote(secret), unquote_plus(secret), quote(secret), quote_plus(secret)}
        forms |= {part.strip() for form in forms for part in form.splitlines()}
        _SECRETS.update(form for form in forms if len(form) >= _LENGTH_MIN)


def _without_password(url: str) -> str:
    return _BEFORE_HOST.sub(lambda match: match[0][: match.start(1) - match.start()], url)


def secrets_in(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the secret texts among values."""
    for name, text in _texts_in(values):
        yield from _secrets_of(name, text)


def _texts_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text among values, after its name, which begins with those around it."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _texts_in(each, f"{name}.{inner}" if name else str(inner))
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts_in(each, name)


def _secrets_of(name: str, value: str) -> Iterator[str]:
    if value and is_secret(name):
        yield value
    # Even of a URL without its scheme.
    yield from (match[1] for match in _BEFORE_HOST.finditer(value))
    yield from (match[3] for match in _QUOTED.finditer(value))
    yield from (match[2] for match in _PLAIN.finditer(value))


def masked(text: str) -> str:
    """Return a text without known secrets and without values at the places of secrets."""
    for secret in sorted(_SECRETS, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, SHOWN)
    return _by_place(text)


def _by_place(text: str) -> str:
    """Return a text without values at the places of secrets."""
    text = _IN_URL.sub(rf"\1:{SHOWN}@", text)
    text = _QUOTED.sub(rf"\1\2{SHOWN}", text)
    return _PLAIN.sub(rf"\1{SHOWN}", text)
