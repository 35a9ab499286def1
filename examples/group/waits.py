"""What a group waits for, as delayed operations; the names are Kafka's.

=====================  ===============  ==========================================  =================================
operation              key              completes                                   expires
=====================  ===============  ==========================================  =================================
``InitialDelayedJoin`` group            never by itself                             after the initial delay: goes on,
                                                                                    or waits once more
``DelayedJoin``        group            everyone's JoinGroup is parked              the rebalance timeout: goes on with
                                                                                    those who are here
``DelayedSync``        group            everyone sent SyncGroup, or it is over      the rebalance timeout: those who
                                                                                    did not are removed
``DelayedHeartbeat``   group, member    the member is gone                          the session timeout: it is removed
``PendingMember``      group, member    the member came back with its id            the session timeout: the id is
                                                                                    forgotten
=====================  ===============  ==========================================  =================================

Kafka makes a new DelayedHeartbeat for every heartbeat; here the one that a member has is extended, which is O(1) and
leaves it where it is on its watch list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from purgatory import DelayedOperation

from .group import GroupState

if TYPE_CHECKING:
    from .group import Group, Member
    from .messages import Answer
    from .rebalance import Rebalancer

__all__ = ["DelayedHeartbeat", "DelayedJoin", "DelayedSync", "InitialDelayedJoin", "Parked", "PendingMember"]

T = TypeVar("T")


class Parked(Generic[T]):
    """A member's request that is parked.

    It ends in one of two ways, whichever comes first: it is answered, or its client goes away and it is withdrawn.
    """

    __slots__ = ("_answer", "_rebalancer", "group", "member")

    def __init__(self, rebalancer: Rebalancer, group: Group, member: Member, answer: Answer[T]) -> None:
        self._rebalancer = rebalancer
        self._answer: Answer[T] | None = answer
        self.group = group
        self.member = member

    def reply(self, result: T) -> None:
        """Answer it; a second answer, or one after a withdrawal, goes nowhere."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(result)

    def withdraw(self) -> bool:
        """The client has gone away.  True iff it was still waiting.

        Its member no longer counts as one who joined, and its session begins to run: if it comes back in time, nothing
        has happened.  A member whose client was never told its id cannot come back and is removed at once.
        """
        if self._answer is None:
            return False
        self._answer = None
        self._rebalancer.withdrawn(self)
        return True


class DelayedJoin(DelayedOperation[None]):
    """Waits until every member has joined."""

    __slots__ = ("group", "rebalancer")

    def __init__(self, rebalancer: Rebalancer, group: Group, timeout: float) -> None:
        super().__init__(timeout)
        self.rebalancer = rebalancer
        self.group = group

    def try_complete(self) -> bool:
        return self.group.everyone_joined or self.group.state is GroupState.DEAD

    def on_complete(self) -> None:
        self.rebalancer.complete_join(self.group)


class InitialDelayedJoin(DelayedJoin):
    """Waits a while for more members before an empty group has its first generation.

    When its time is up and somebody has come in the meantime, it waits once more, until ``remaining`` is used up.
    """

    __slots__ = ("configured_delay", "delay", "remaining")

    def __init__(
        self, rebalancer: Rebalancer, group: Group, configured_delay: float, delay: float, remaining: float
    ) -> None:
        super().__init__(rebalancer, group, delay)
        self.configured_delay = configured_delay
        self.delay = delay
        self.remaining = remaining

    def try_complete(self) -> bool:
        return self.group.state is GroupState.DEAD

    def on_complete(self) -> None:
        group = self.group
        if self.expired and group.new_member_added and self.remaining > 0:
            group.new_member_added = False
            delay = min(self.configured_delay, self.remaining)
            remaining = max(self.remaining - self.delay, 0.0)
            self.rebalancer.wait_for_joins(
                InitialDelayedJoin(self.rebalancer, group, self.configured_delay, delay, remaining)
            )
        else:
            super().on_complete()


class DelayedSync(DelayedOperation[None]):
    """Waits until every member of a generation has sent SyncGroup."""

    __slots__ = ("generation", "group", "rebalancer")

    def __init__(self, rebalancer: Rebalancer, group: Group, timeout: float) -> None:
        super().__init__(timeout)
        self.rebalancer = rebalancer
        self.group = group
        self.generation = group.generation

    def try_complete(self) -> bool:
        group = self.group
        if group.generation != self.generation or not group.pending_sync:
            return True
        return group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)

    def on_expiration(self) -> None:
        self.rebalancer.sync_expired(self.group, self.generation)


class DelayedHeartbeat(DelayedOperation[None]):
    """A member's session: expires if nothing is heard of it in time."""

    __slots__ = ("group", "member", "rebalancer")

    def __init__(self, rebalancer: Rebalancer, group: Group, member: Member, timeout: float | None) -> None:
        super().__init__(timeout)
        self.rebalancer = rebalancer
        self.group = group
        self.member = member

    def try_complete(self) -> bool:
        return self.member.heartbeat is not self

    def on_expiration(self) -> None:
        self.rebalancer.session_expired(self.group, self.member)


class PendingMember(DelayedOperation[None]):
    """Somebody who was given a member id and has not come back with it yet."""

    __slots__ = ("group", "member_id", "rebalancer")

    def __init__(self, rebalancer: Rebalancer, group: Group, member_id: str, timeout: float) -> None:
        super().__init__(timeout)
        self.rebalancer = rebalancer
        self.group = group
        self.member_id = member_id

    def try_complete(self) -> bool:
        return self.group.pending.get(self.member_id) is not self

    def on_expiration(self) -> None:
        self.rebalancer.pending_expired(self.group, self.member_id)


AnyParked = Parked[Any]
