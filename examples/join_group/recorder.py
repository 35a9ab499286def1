"""The recorder of a run: counts for the tables, a timeline for the picture, and a fingerprint."""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from examples.group import Group, GroupListener, GroupState, Member, Removal

__all__ = ["GroupTrack", "MemberRow", "Recorder", "Status", "StatusChange"]


class Status(enum.Enum):
    """The status of a member in the picture."""

    WAITING = "waiting"  # its JoinGroup or SyncGroup is parked
    MEMBER = "member"  # part of a generation
    CRASHED = "crashed"  # its client has crashed, but the coordinator has not detected the crash
    REMOVED = "removed"  # the coordinator has removed it, but its client has not detected the removal
    GONE = "gone"  # neither connected nor a member


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The status of a member from ``at_ms`` on."""

    at_ms: int
    status: Status
    generation: int


@dataclass(slots=True)
class MemberRow:
    """The row of one member in the picture."""

    changes: list[StatusChange] = field(default_factory=list)
    member_id: str = ""


@dataclass(slots=True)
class GroupTrack:
    """One group in the picture: its states as (time, state, generation), and the rows of its members."""

    states: list[tuple[int, GroupState, int]] = field(default_factory=list)
    rows: dict[str, MemberRow] = field(default_factory=dict)


class Recorder(GroupListener):
    """Record events of the coordinator and of the members.

    ``read_ms``: the clock.  Times start at the last call to :meth:`begin`.  ``tracked``: the groups in the picture,
    with the names of their members.
    """

    def __init__(self, read_ms: Callable[[], int], tracked: dict[str, Iterable[str]]) -> None:
        self._read_ms = read_ms
        self._start_ms = read_ms()
        self._hash = hashlib.sha256()
        self.tracks = {
            group_id: GroupTrack(rows={name: MemberRow() for name in names}) for group_id, names in tracked.items()
        }
        self.latencies_ms = array("q")
        self.rebalances_begun = 0
        self.rebalances = 0
        self.emptied = 0
        self.joined_first = 0
        self.kept = 0
        self.replaced = 0
        self.removed: Counter[Removal] = Counter()
        self.news: deque[tuple[int, str]] = deque(maxlen=8)

    def begin(self) -> None:
        """Start the clock of the run."""
        self._start_ms = self._read_ms()

    def now_ms(self) -> int:
        """Return the milliseconds since the start of the run."""
        return self._read_ms() - self._start_ms

    @property
    def fingerprint(self) -> str:
        """A digest of all events of groups and members, with their times."""
        return self._hash.hexdigest()[:16]

    # Events of the coordinator

    def state_changed(self, group: Group, before: GroupState) -> None:
        now_ms = self.now_ms()
        state = group.state
        if state is GroupState.DEAD:
            return
        if state is GroupState.PREPARING_REBALANCE:
            self.rebalances_begun += 1
        elif state is GroupState.COMPLETING_REBALANCE:
            new = sum(1 for member in group.members.values() if member.is_new)
            self.rebalances += 1
            self.joined_first += new
            self.kept += len(group.members) - new
            self.news.append(
                (
                    now_ms,
                    f"{group.group_id} generation {group.generation}: {len(group.members)} members, {new} of them new",
                )
            )
        elif state is GroupState.EMPTY:
            self.emptied += 1
            self.news.append((now_ms, f"{group.group_id} is empty"))
        track = self.tracks.get(group.group_id)
        if track is not None:
            track.states.append((now_ms, state, group.generation))
        self._note(f"{now_ms} {group.group_id} {before.value}>{state.value} {group.generation} {len(group.members)}")

    def member_added(self, group: Group, member: Member) -> None:
        self._note(f"{self.now_ms()} {group.group_id} +{member.member_id}")

    def member_replaced(self, group: Group, member: Member, before: str) -> None:
        self.replaced += 1
        self.news.append((self.now_ms(), f"{member.client_id} returned with its instance id: no rebalance"))
        self._note(f"{self.now_ms()} {group.group_id} {before}>{member.member_id}")

    def member_removed(self, group: Group, member: Member, why: Removal) -> None:
        now_ms = self.now_ms()
        self.removed[why] += 1
        if why is not Removal.LEFT:
            self.news.append((now_ms, f"{member.client_id} was removed: {why.value}"))
        self._note(f"{now_ms} {group.group_id} -{member.member_id} {why.name}")
        row = self._row(group.group_id, member.client_id)
        if row is not None and row.member_id == member.member_id and row.changes:
            last = row.changes[-1].status
            if last is Status.CRASHED:
                row.changes.append(StatusChange(now_ms, Status.GONE, -1))
            elif last is Status.MEMBER:
                row.changes.append(StatusChange(now_ms, Status.REMOVED, -1))

    # Events of the members

    def joined(self, latency_ms: int) -> None:
        """Record that a member got its assignment ``latency_ms`` milliseconds after it began to join."""
        self.latencies_ms.append(latency_ms)

    def client(self, group_id: str, name: str, status: Status, member_id: str, generation: int) -> None:
        """Record the status of a member from its own point of view."""
        row = self._row(group_id, name)
        if row is not None:
            row.member_id = member_id
            row.changes.append(StatusChange(self.now_ms(), status, generation if status is Status.MEMBER else -1))

    # Internals

    def _row(self, group_id: str, name: str) -> MemberRow | None:
        track = self.tracks.get(group_id)
        return None if track is None else track.rows.get(name)

    def _note(self, line: str) -> None:
        self._hash.update(line.encode() + b"\n")
