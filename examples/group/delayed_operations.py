"""The delayed operations of a group, with Kafka's names.

=====================  ===============  ==========================================  =================================
operation              key              completes                                   expires
=====================  ===============  ==========================================  =================================
``InitialDelayedJoin`` group            only when the group is removed              initial delay: begins generation,
                                                                                    or waits again
``DelayedJoin``        group            the JoinGroup of every member is parked     rebalance timeout: begins the
                                                                                    generation with the joined members
``DelayedSync``        group            all members have sent SyncGroup, or the     rebalance timeout: removes the other
                                        generation has ended                        members
``DelayedHeartbeat``   group, member    the member has left                         session timeout: removes the member
``PendingMember``      group, member    the member has joined with its id           session timeout: removes the id
=====================  ===============  ==========================================  =================================

Kafka creates a new DelayedHeartbeat for every heartbeat.  This coordinator extends the existing operation, which takes
O(1) time and leaves the operation's position in the watch list unchanged.
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
    """A parked request of a member.

    It ends when the coordinator answers it, or when the client disconnects and the caller withdraws it.
    """

    __slots__ = ("_answer", "_rebalancer", "group", "member")

    def __init__(self, rebalancer: Rebalancer, group: Group, member: Member, answer: Answer[T]) -> None:
        self._rebalancer = rebalancer
        self._answer: Answer[T] | None = answer
        self.group = group
        self.member = member

    def reply(self, result: T) -> None:
        """Answer the request.  A second answer, or an answer after a withdrawal, has no effect."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(result)

    def withdraw(self) -> bool:
        """Withdraw the request because its client has disconnected.  Return whether it was still waiting.

        The member no longer counts as joined, and its session starts to run.  If the member joins again before the
        session ends, it keeps its place.  If its client never received the id, the member cannot return and is removed
        at once.
        """
        if self._answer is None:
            return False
        self._answer = None
        self._rebalancer.withdrawn(self)
        return True


class DelayedJoin(DelayedOperation[None]):
    """Wait until every member has joined."""

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
    """Wait for more members before the first generation of an empty group.

    If members have joined when the delay ends, another such operation waits, until ``remaining`` seconds have passed.
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
    """Wait until every member of a generation has sent SyncGroup."""

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
    """The session of a member.  It expires when no request from the member arrives in time."""

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
    """A member id that a client has received but has not used yet."""

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
