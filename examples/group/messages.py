"""What members ask, and what they are answered: plain data.  Durations in seconds, assignments as raw bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from .errors import ErrorCode

__all__ = [
    "Answer",
    "GroupConfig",
    "GroupDescription",
    "GroupListing",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "MemberDescription",
    "SyncRequest",
    "SyncResult",
]

T = TypeVar("T")

Answer = Callable[[T], object]
"""Called exactly once with the result, at once or when the wait is over.  It must not raise."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The coordinator's settings, in seconds; Kafka's names and defaults.

    ``initial_rebalance_delay``  ``group.initial.rebalance.delay.ms``: how long an empty group waits for more members
    ``min_session_timeout``      ``group.min.session.timeout.ms``
    ``max_session_timeout``      ``group.max.session.timeout.ms``
    ``new_member_timeout``       how long a new member may be parked before it is told to ask again
    ``max_size``                 ``group.max.size``: members per group; None: no limit
    """

    initial_rebalance_delay: float = 3.0
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    new_member_timeout: float = 300.0
    max_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("initial_rebalance_delay", "min_session_timeout", "max_session_timeout", "new_member_timeout"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} is a number of seconds, at least 0, not {value!r}")
        if self.min_session_timeout > self.max_session_timeout:
            raise ValueError(
                f"min_session_timeout={self.min_session_timeout} is above"
                f" max_session_timeout={self.max_session_timeout}"
            )
        if self.max_size is not None and self.max_size < 1:
            raise ValueError(f"max_size is at least 1, or None for no limit, not {self.max_size}")


class JoinRequest(NamedTuple):
    """JoinGroup.

    ``protocols`` are (name, metadata) pairs, the preferred one first.  ``require_known_member_id``: version 4 and
    above; a dynamic member without an id then gets MEMBER_ID_REQUIRED and an id to come again with.
    """

    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout: float
    rebalance_timeout: float
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = True


class JoinedMember(NamedTuple):
    """A member as the leader gets to see it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to JoinGroup.  ``members`` is for the leader alone; ``protocol`` is "" on errors, never None."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """SyncGroup.  ``assignments`` is what the leader sends; ``protocol_type`` and ``protocol`` are checked if given."""

    group_id: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes] = MappingProxyType({})
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


class SyncResult(NamedTuple):
    """The answer to SyncGroup."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str = ""
    protocol: str = ""


class MemberDescription(NamedTuple):
    """A member in DescribeGroups; metadata and assignment are empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group in DescribeGroups.  ``state`` is Kafka's name for it; one that does not exist is "Dead"."""

    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()


class GroupListing(NamedTuple):
    """A group in ListGroups."""

    group_id: str
    protocol_type: str
    state: str
