"""The members that have arrived at a quorum, and the operation that waits for it."""

from collections.abc import Hashable
from typing import Any, final

from mypy_extensions import i64

from .operation.lifecycle import COMPLETED
from .operation.private_key import PrivateKey
from .operation.wait_until import LibraryWait
from .purgatory import PurgatoryCore
from .watch.validation import UNLIMITED

__all__ = ["QuorumMembers", "QuorumWait"]


@final
class QuorumMembers:
    """The members that have arrived at a quorum.  See :class:`purgatory.locks.Quorum`.

    ``result``: the members that had arrived when there were enough of them; None before that.  ``private_key``: the key
    on which the waiters are parked.
    """

    __slots__ = ("_core", "_members", "_need", "private_key", "result")

    def __init__(self, core: PurgatoryCore, need: i64, shown: Hashable) -> None:
        self._core: PurgatoryCore = core
        self._need: i64 = need
        self._members: set[Hashable] = set()
        self.result: frozenset[Hashable] | None = None
        self.private_key: PrivateKey = PrivateKey(shown)

    def add(self, member: Hashable) -> bool:
        """See :meth:`purgatory.locks.Quorum.arrive`."""
        core = self._core
        core.validate_thread()
        if self._is_complete():
            hash(member)
            return False
        members = self._members
        number = len(members)
        members.add(member)
        if len(members) == number or self._is_complete():  # comparing the member may have completed the quorum
            return False
        if len(members) >= self._need:
            self.result = frozenset(members)
            core.check(self.private_key, None, UNLIMITED)
        return True

    def _is_complete(self) -> bool:
        # This is a method because the compiler assumes that an attribute that was None stays None until it is assigned
        # again.
        return self.result is not None

    def arrived(self) -> frozenset[Hashable]:
        """Return the members that have arrived so far."""
        return frozenset(self._members) if self.result is None else self.result

    def number(self) -> int:
        """Return how many members have arrived so far, without copying them."""
        return len(self._members if self.result is None else self.result)


@final
class QuorumWait(LibraryWait):
    """Waits until enough members have arrived.  Its result is the set of members, or None if the wait expires."""

    __slots__ = ("_members",)

    def __init__(self, members: QuorumMembers, kind: str) -> None:
        super().__init__(kind)
        self._members: QuorumMembers = members

    def try_complete(self) -> bool:
        return self._members.result is not None

    def on_complete(self) -> Any:
        if self._op_state != COMPLETED:
            return None
        if self._members.result is None:
            raise RuntimeError("arriving members complete this operation; force_complete() cannot")
        return self._members.result


# Errors show the class name of an operation, so that name is set here to the name of the method.
setattr(QuorumWait, "__name__", "wait")  # noqa: B010 - the compiler rejects an assignment to a class
setattr(QuorumWait, "__qualname__", "wait")  # noqa: B010
