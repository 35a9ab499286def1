"""A check tries the operations on its key in order of arrival, and no check is lost."""

from purgatory import Outcome, Purgatory
from tests.helpers import Op, check


async def test_the_next_check_on_any_key_tries_it(purgatory: Purgatory[Op]) -> None:
    """After False, a check of any of its keys tries the operation; a check of another key does not."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a", "b", "c"])
    for number, key in enumerate("abc", start=2):
        assert purgatory.check_and_complete(key) == 0
        assert op.calls.count("try") == number
    assert purgatory.check_and_complete("d") == 0
    assert op.calls.count("try") == 4


async def test_watchers_are_tried_in_the_order_of_arrival(purgatory: Purgatory[Op]) -> None:
    """Operations on a key are tried in order of arrival, even if others have left in between."""
    order: list[str] = []
    ops = [Op(5, name=str(number), on_try=lambda op: order.append(op.name)) for number in range(10)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    ops[0].cancel()
    ops[5].cancel()
    ops[9].cancel()
    order.clear()
    purgatory.check_and_complete("a")
    assert order == ["1", "2", "3", "4", "6", "7", "8"]


async def test_a_check_during_the_first_try_is_not_lost(purgatory: Purgatory[Op]) -> None:
    """A check between the try and the watch is queued and finds the operation watched."""

    class Late(Op):
        def try_complete(self) -> bool:
            self.calls.append("try")
            if len(self.calls) == 1:
                assert purgatory.check_and_complete("a") == 0
                return False
            return True

    op = Late(5)
    assert purgatory.try_complete_else_watch(op, ["a"])
    assert op.calls == ["try", "try", "complete"]
    check(purgatory, parked=0, completed=1, immediate=0)


async def test_a_check_within_the_first_try_is_queued(purgatory: Purgatory[Op]) -> None:
    """The check returns 0, and runs before the call that submits the operation returns."""
    other, counted = Op(), []
    purgatory.try_complete_else_watch(other, ["b"])
    other.ready = True
    op = Op(on_try=lambda _: counted.append(purgatory.check_and_complete("b")))
    assert not purgatory.try_complete_else_watch(op, ["a"])
    assert counted == [0]
    assert other.outcome is Outcome.COMPLETED
    purgatory._check()
