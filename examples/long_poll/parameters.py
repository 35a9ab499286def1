"""What a request may ask for.  Whatever is wrong is told with the parameter, its value and what was meant."""

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
    """A parameter that cannot be meant; says why."""


class OffsetGone(Exception):
    """The messages at the offset are no longer kept.  ``start``: the oldest offset that is."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for at most, and what it gets if it does not say; waits in seconds."""

    longest_wait: float = 300.0
    default_wait: float = 30.0
    max_message_bytes: int = 1 << 20
    max_answer_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        if not 0.0 <= self.default_wait <= self.longest_wait or math.isinf(self.longest_wait):
            raise ValueError(
                f"0 <= default_wait <= longest_wait is meant, not {self.default_wait}, {self.longest_wait}"
            )


def check_topic_name(name: str) -> str:
    """The name, or BadParameter: letters, digits, '.', '_' and '-', at most 249, as in Kafka."""
    if not _NAME.fullmatch(name):
        raise BadParameter(f"topic is 1 to 249 of A-Z, a-z, 0-9, '.', '_' and '-', not {name[:260]!r}")
    return name


def fetch_request(name: str, topic: Topic, query: Iterable[tuple[str, str]], limits: Limits) -> FetchRequest:
    """Read the query of a GET.  BadParameter, or OffsetGone if the offset is no longer kept."""
    given: dict[str, str] = {}
    for key, value in query:
        if key not in _KNOWN:
            raise BadParameter(f"there is no parameter {key!r}: {', '.join(_KNOWN)} are known")
        if key in given:
            raise BadParameter(f"{key} is given twice")
        given[key] = value
    offset = _whole(given, "offset", 0)
    max_bytes = _whole(given, "max_bytes", limits.max_answer_bytes)
    if not 1 <= max_bytes <= limits.max_answer_bytes:
        raise BadParameter(f"max_bytes is 1 to {limits.max_answer_bytes}, not {max_bytes}")
    min_bytes = _whole(given, "min_bytes", 1)
    for bound, why in ((max_bytes, "max_bytes"), (topic.retain_bytes, "what a topic keeps")):
        if min_bytes > bound:
            raise BadParameter(f"min_bytes={min_bytes} is more than {why} ({bound}): it would never be there")
    max_wait = _seconds(given, "max_wait", limits)
    if offset > topic.end:
        raise BadParameter(f"offset={offset} is beyond the end of topic {name!r}: the next message will be {topic.end}")
    if offset < topic.start:
        raise OffsetGone(
            f"offset={offset} of topic {name!r} is no longer kept: it begins at {topic.start}", topic.start
        )
    return FetchRequest(name, offset, min_bytes, max_bytes, max_wait)


def _whole(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text):
        raise BadParameter(f"{key} is a whole number, 0 or more, not {text[:40]!r}")
    return int(text)


def _seconds(given: dict[str, str], key: str, limits: Limits) -> float:
    text = given.get(key)
    if text is None:
        return limits.default_wait
    if not _SECONDS.fullmatch(text):
        raise BadParameter(f"{key} is a number of seconds, 0 or more, such as 2.5, not {text[:40]!r}")
    if float(text) > limits.longest_wait:
        raise BadParameter(f"{key} is at most {limits.longest_wait:g} seconds, not {text}")
    return float(text)
