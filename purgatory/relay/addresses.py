"""Addresses of engines: checked when a transport is made, and never repeated, because they may contain a password."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

from purgatory.texts import safe_repr

__all__ = ["described", "secrets_of_url", "validate_url", "without_secrets"]


def described(value: object) -> str:
    """Return the value as a text for an error message, or only its class if the value may contain an address."""
    if isinstance(value, (str, bytes, bytearray, Mapping, Iterable)):
        return f"a value of type {type(value).__name__}"
    return safe_repr(value)


def validate_url(url: str, example: str) -> None:
    """Raise ValueError if the URL cannot be parsed, or if its password is not percent-encoded."""
    if not _is_url(url):
        raise ValueError(
            f"url must be a URL such as {example}, with the characters / ? # @ % of a password percent-encoded;"
            " it is not repeated here, because it may contain a password"
        )


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # ValueError if it is no number
    except ValueError:
        return False
    # A password with one of / ? # ends the part of the URL that contains it, and the @ is in the rest.
    return parts.scheme == "unix" or "@" not in parts.path + parts.query + parts.fragment


def secrets_of_url(url: str) -> list[str]:
    """Return the strings that must not appear in a message: the URL, and its password both as given and decoded."""
    password = urlsplit(url).password
    return [url] if password is None else [url, password, unquote(password)]


@contextlib.contextmanager
def without_secrets(secrets: Iterable[str]) -> Iterator[None]:
    """Replace an error whose text contains a secret by a ConnectionError whose text does not."""
    try:
        yield
    except Exception as error:
        text = safe = str(error)
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            safe = safe.replace(secret, "***")
        if safe == text:
            raise
        raise ConnectionError(f"{type(error).__name__}: {safe}") from None
