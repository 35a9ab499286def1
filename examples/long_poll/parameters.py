"""The parameters of a request.  Errors contain the parameter, its value, and the allowed values."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .fetch import FetchRequest
from .topics import Topic

__all__ = ["BadParameter", "Limits", "OffsetGone", "check_topic_name", "fetch_request"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_WHOLE = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_KNOWN = ("offset", "min_bytes", "max_bytes", "max_wait")


class BadParameter(ValueError):
    """A parameter is invalid.  The message gives the reason."""


class OffsetGone(Exception):
    """The topic no longer keeps the message at the offset.  ``start``: the first available offset."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and defaults of a request.  Times are in seconds."""

    longest_wait: float = 300.0
    default_wait: float = 30.0
    max_message_bytes: int = 1 << 20
    max_answer_bytes: int = 4 << 20
    body_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.default_wait <= self.longest_wait or math.isinf(self.longest_wait):
            raise ValueError(
                f"default_wait must be 0 to longest_wait={self.longest_wait} (finite), got {self.default_wait}"
            )


def check_topic_name(name: str) -> str:
    """Return the name if it is valid in Kafka.  Otherwise, raise BadParameter."""
    if not _NAME.fullmatch(name):
        raise BadParameter(f"topic must be 1 to 249 of A-Z, a-z, 0-9, '.', '_', and '-', got {name[:260]!r}")
    return name


def fetch_request(name: str, topic: Topic, query: Iterable[tuple[str, str]], limits: Limits) -> FetchRequest:
    """Parse the query of a GET request.  Raise BadParameter, or OffsetGone if the message is no longer kept."""
    given: dict[str, str] = {}
    for key, value in query:
        if key not in _KNOWN:
            raise BadParameter(f"parameter must be one of {', '.join(_KNOWN)}, got {key!r}")
        if key in given:
            raise BadParameter(f"{key} must be given once")
        given[key] = value
    offset = _whole(given, "offset", 0)
    max_bytes = _whole(given, "max_bytes", limits.max_answer_bytes)
    if not 1 <= max_bytes <= limits.max_answer_bytes:
        raise BadParameter(f"max_bytes must be 1 to {limits.max_answer_bytes}, got {max_bytes}")
    min_bytes = _whole(given, "min_bytes", 1)
    for bound, why in ((max_bytes, "max_bytes"), (topic.retain_bytes, "the size of a topic")):
        if min_bytes > bound:
            raise BadParameter(f"min_bytes must be at most {why}, {bound}, got {min_bytes}")
    max_wait = _seconds(given, "max_wait", limits)
    if offset > topic.end:
        raise BadParameter(f"offset must be at most {topic.end}, the end of topic {name!r}, got {offset}")
    if offset < topic.start:
        raise OffsetGone(
            f"offset must be at least {topic.start}, the start of topic {name!r}, got {offset}", topic.start
        )
    return FetchRequest(name, offset, min_bytes, max_bytes, max_wait)


def _whole(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text):
        raise BadParameter(f"{key} must be an integer, at least 0, got {text[:40]!r}")
    return int(text)


def _seconds(given: dict[str, str], key: str, limits: Limits) -> float:
    text = given.get(key)
    if text is None:
        return limits.default_wait
    if not _SECONDS.fullmatch(text):
        raise BadParameter(f"{key} must be a number of seconds, at least 0, got {text[:40]!r}")
    if float(text) > limits.longest_wait:
        raise BadParameter(f"{key} must be at most {limits.longest_wait:g} seconds, got {text}")
    return float(text)
