"""Check the addresses of engines, and never show them, because they may contain a password."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

from purgatory.texts import class_name, safe_repr, type_name

_NO_HOST: Final = re.compile(r"[\s,]")
_SHORTEST: Final = 16  # characters of a secret that must not appear
_SHORTEST_OPTION: Final = 6  # characters of an option that may be a secret; others are words such as "true"

__all__ = ["described", "secrets_of_url", "validate_url", "without_secrets"]


def described(value: object) -> str:
    """Describe the value for an error message: a number or None as it is, a class or function by its name, and any
    other value by its class alone.

    The ``repr`` of a client, a pool, a settings object, or a URL object may contain a password.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return safe_repr(value)
    if isinstance(value, type):
        return f"the class {class_name(value)}"
    if isinstance(value, FunctionType):
        return f"the function {value.__qualname__}"
    return f"a value of type {type_name(value)}"


def validate_url(url: str, example: str, schemes: Sequence[str], *, needs_host: bool) -> None:
    """Raise ValueError if the URL cannot be parsed, if its scheme is wrong or it has no host, or if its password is not
    percent-encoded.
    """
    problem = _problem_of(url, schemes, needs_host)
    if problem is not None:
        raise ValueError(
            f"url must be a URL such as {example}, with the characters / ? # @ % of a password percent-encoded,"
            f" got one {problem}; it is not repeated here, because it may contain a password"
        )


def _problem_of(url: str, schemes: Sequence[str], needs_host: bool) -> str | None:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in schemes:
        *others, last = [f"{one}://" for one in schemes]
        return f"that does not begin with {', '.join(others)}, or {last}"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if the port is not a number
    except ValueError:
        return "that cannot be parsed"
    if scheme == "unix":
        return None if parts.path else "without a path"
    # An unencoded /, ?, or # in a password ends the network location there, so the @ is in a later part of the URL.
    if "@" in parts.path + parts.query + parts.fragment:
        return "with an @ after its host"
    if not parts.hostname:
        return "without a host" if needs_host else None
    return "with a blank or a comma in its host" if _NO_HOST.search(parts.hostname) else None


def secrets_of_url(url: str, *, every_option: bool = False) -> list[str]:
    """Return the strings that must not appear in a message: the URL, and its passwords both as given and decoded.

    With ``every_option``, each value in the query is taken for a password unless it is short.
    """
    parts = urlsplit(url)
    options = [option.partition("=") for option in parts.query.split("&")]
    passwords = [  # unix:///run/redis.sock?password=...
        value for name, _, value in options if "password" in name or (every_option and len(value) >= _SHORTEST_OPTION)
    ]
    if parts.password is not None:
        passwords.append(parts.password)
    return [url, *passwords, *map(unquote, passwords), *map(unquote_plus, passwords)]


def _masked(text: str, secrets: Iterable[str]) -> str:
    """Replace the secrets in the text, and then the beginnings of long ones: engines shorten what they repeat."""
    in_order = sorted(filter(None, secrets), key=len, reverse=True)
    for secret in in_order:
        text = text.replace(secret, "***")
    for secret in in_order:
        for length in range(len(secret) - 1, _SHORTEST - 1, -1):
            if secret[:length] in text:
                text = text.replace(secret[:length], "***")
                break
    return text


@contextlib.contextmanager
def without_secrets(secrets: Iterable[str]) -> Iterator[None]:
    """Replace an error whose message contains a secret with a ConnectionError whose message does not."""
    try:
        yield
    except Exception as error:
        text = str(error)
        safe = _masked(text, secrets)
        if safe == text:
            raise
        raise ConnectionError(f"{type(error).__name__}: {safe}") from None
