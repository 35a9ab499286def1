"""Waiting until a given number of different members have arrived."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic

from purgatory.aio.purgatory import Purgatory
from purgatory.core.operation.operation import set_deadline
from purgatory.core.operation.wait_until import MISSING, times_of
from purgatory.core.quorum_members import QuorumMembers, QuorumWait
from purgatory.texts import safe_repr, uncopyable

from .room import not_granted, out_of_time, validated_kind, validated_room

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", bound=Hashable, default=Any)
else:
    from typing import TypeVar

    M = TypeVar("M")

__all__ = ["Quorum"]


class Quorum(Generic[M]):
    """Waits until ``need`` different members have arrived, such as two of three acknowledgements.

    **Usage.**  ::

        acks = Quorum(room, need=2)
        acks.arrive("worker-a")                      # where an acknowledgement is received
        arrived = await acks.wait(timeout=30.0)      # where it is needed

    **Implementation.**  Each waiting task is an operation in the purgatory, on a private key that no check reaches.
    Waiting operations keep the quorum alive.

    **Cancellation safety.**  Cancelling a task in :meth:`wait` affects neither the quorum nor other waiters.

    ``Quorum[str](room, need=2)`` gives type checkers the type of the members.

    ``room``: the purgatory in which the tasks wait.  ``need``: an int of at least 1; any other value raises TypeError
    or ValueError.  ``key``: what dumps and events show as the key of the waiting operations, any hashable object; it
    need not be unique.  ``kind``: what events, dumps, metrics, and journals show as the operations' kind.
    """

    __slots__ = ("__weakref__", "_kind", "_members", "_need", "_room")

    def __init__(self, room: Purgatory[Any], need: int, *, key: Hashable = "quorum", kind: str = "Quorum") -> None:
        self._room = validated_room(room)
        if type(need) is not int:
            raise TypeError(f"need must be an int, at least 1, got {safe_repr(need)}")
        if not 1 <= need < 1 << 60:
            raise ValueError(f"need must be at least 1, got {safe_repr(need)}")
        self._kind = validated_kind(kind)
        hash(key)
        self._need = need
        self._members = QuorumMembers(self._room._core, need, key)

    def arrive(self, member: M) -> bool:
        """Count the member and return True; return False if it has arrived before or if the quorum is already complete.

        ``member``: any hashable object.

        The call that completes the quorum answers every waiter.  ``arrive`` never waits and works even in a closed
        purgatory.  Raises TypeError if the member is unhashable, and RuntimeError if called from any thread other than
        the event loop's.
        """
        return self._members.add(member)

    @property
    def arrived(self) -> frozenset[M]:
        """The members that have arrived; once the quorum is complete, those that completed it."""
        return self._members.arrived()  # type: ignore[return-value]

    async def wait(self, *, timeout: float | None = None, deadline: float | None = None) -> frozenset[M]:
        """Wait until the quorum is complete, and return its members; if it is already complete, return them at once.

        ``timeout``: seconds; or ``deadline``: a time in seconds on the timer's clock (:meth:`SystemTimer.time`).  None:
        no deadline.  With a timeout of 0 or a deadline that has passed, the call does not wait.

        Raises TimeoutError if the deadline has passed, :class:`PurgatoryClosed` if the task would have to wait in a
        purgatory that is closed or closing, and :class:`PurgatoryFull` if the task would have to wait and a limit has
        been reached.
        """
        members = self._members
        if deadline is None:
            delay_ms, at_ms = times_of("wait", self._room.timer, timeout, MISSING)
        else:
            delay_ms, at_ms = times_of("wait", self._room.timer, MISSING if timeout is None else timeout, deadline)
        if members.result is not None:
            return members.result  # type: ignore[return-value]
        if delay_ms == 0:
            raise out_of_time(self._name(), timeout)
        wait: Any = QuorumWait(members, self._kind)
        set_deadline(wait, delay_ms, at_ms)
        try:
            result: frozenset[M] | None = await self._room.park(wait, (members.private_key,))
            if result is None:
                raise not_granted(self._room, wait, self._name(), timeout)
            return result
        finally:
            del wait

    def _name(self) -> str:
        shown = safe_repr(self._members.private_key)
        return f"quorum {shown} with {self._members.number()} of {self._need} members"

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its waiters have one place each")

    def __repr__(self) -> str:
        return f"<Quorum {self._members.number()} of {self._need} in {self._room.name!r}>"
