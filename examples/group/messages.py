"""Requests and results as plain data.  Durations are in seconds; assignments are raw bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from .error_codes import ErrorCode

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
"""A callback for the result, called exactly once, at once or later.  It must not raise."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of the coordinator, with Kafka's names and defaults.  Durations are in seconds.

    ``initial_rebalance_delay``  ``group.initial.rebalance.delay.ms``: time that an empty group waits for members
    ``min_session_timeout``      ``group.min.session.timeout.ms``
    ``max_session_timeout``      ``group.max.session.timeout.ms``
    ``new_member_timeout``       time that a new member may be parked before it must retry
    ``max_size``                 ``group.max.size``: members of a group; None: no limit
    ``max_groups``               groups in all states; those without members or offsets are removed to make room
    ``max_members``              members and pending member ids of all groups together
    ``max_id_length``            characters of a group id
    ``max_member_bytes``         size of the protocols and their metadata for one member
    ``max_group_bytes``          the same for all members of a group, plus their assignments
    ``max_total_bytes``          the same for all groups together

    A request that would exceed a limit gets GROUP_MAX_SIZE_REACHED.  A request with a longer group id gets
    INVALID_GROUP_ID.
    """

    initial_rebalance_delay: float = 3.0
    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    new_member_timeout: float = 300.0
    max_size: int | None = None
    max_groups: int = 10_000
    max_members: int = 100_000
    max_id_length: int = 249
    max_member_bytes: int = 64 * 1024
    max_group_bytes: int = 4 * 1024 * 1024
    max_total_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("initial_rebalance_delay", "min_session_timeout", "max_session_timeout", "new_member_timeout"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number of seconds, at least 0, got {value!r}")
        if self.min_session_timeout > self.max_session_timeout:
            raise ValueError(
                f"min_session_timeout must be at most max_session_timeout={self.max_session_timeout},"
                f" got {self.min_session_timeout}"
            )
        if self.max_size is not None and self.max_size < 1:
            raise ValueError(f"max_size must be at least 1, or None for no limit, got {self.max_size}")
        limits = ("groups", "members", "id_length", "member_bytes", "group_bytes", "total_bytes")
        for name in [f"max_{limit}" for limit in limits]:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class JoinRequest(NamedTuple):
    """A JoinGroup request.

    ``protocols``: pairs of (name, metadata) in order of preference.  ``require_known_member_id``: true from version 4
    on; a dynamic member without an id then gets MEMBER_ID_REQUIRED and an id and must join again with that id.
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
    """A member in the response to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The result of JoinGroup.  Only the leader gets ``members``.  ``protocol`` is "" on errors, never None."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """A SyncGroup request.  Only the leader sends ``assignments``.  ``protocol_type``, ``protocol``: checked if set."""

    group_id: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes] = MappingProxyType({})
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


class SyncResult(NamedTuple):
    """The result of SyncGroup."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str = ""
    protocol: str = ""


class MemberDescription(NamedTuple):
    """A member in DescribeGroups.  Metadata and assignment are empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group in DescribeGroups.  ``state`` is Kafka's name; a missing group is "Dead"."""

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
