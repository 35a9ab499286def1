"""A clock that fails: whoever asked is told, and the books are right."""

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check


async def test_no_time_no_parking(
    purgatory: Purgatory[Op], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock raises, nothing has changed, and the operation can be handed over again."""

    def broken(self: VirtualClock) -> int:
        raise OSError("no time")

    op = Op(5)
    monkeypatch.setattr(VirtualClock, "ceil_ms", broken)
    with pytest.raises(OSError, match="no time"):
        purgatory.try_complete_else_watch(op, ["a"])
    monkeypatch.undo()
    assert op.calls == []
    check(purgatory, submitted=0)
    assert not purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, submitted=1, parked=1, watched=1)
