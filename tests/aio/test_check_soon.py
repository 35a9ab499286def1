"""``check_soon`` checks each key once, at the end of the turn of the loop, and loses no check."""

import asyncio
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.aio.coalesced_checks import LoopChecks
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park, turns_until


async def test_it_checks_at_the_end_of_the_turn_and_once(purgatory: Purgatory[Op]) -> None:
    """A thousand calls in one turn cause one check, after the turn; a call in a later turn causes another one."""
    operation = park(purgatory, "key")
    for _ in range(1000):
        purgatory.check_soon("key")
    assert operation.calls == []
    await asyncio.sleep(0)
    assert operation.calls == ["try"]
    await asyncio.sleep(0)
    assert operation.calls == ["try"]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert operation.calls == ["try", "try"]


async def test_the_requests_of_a_turn_share_one_callback(
    purgatory: Purgatory[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys are requested in a turn, one callback is scheduled in the event loop."""
    scheduled: list[int] = []
    schedule = LoopChecks._schedule_in

    def counting(self: LoopChecks, loop: asyncio.AbstractEventLoop) -> None:
        scheduled.append(1)
        schedule(self, loop)

    monkeypatch.setattr(LoopChecks, "_schedule_in", counting)
    watchers = [park(purgatory, number) for number in range(10)]
    for number in range(10):
        purgatory.check_soon(number)
    await asyncio.sleep(0)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 10
    assert scheduled == [1]


async def test_it_completes_operations_whose_condition_holds(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The condition is read when the check runs, not when ``check_soon`` is called."""
    operation = park(purgatory, "key", name="answer")
    purgatory.check_soon("key")
    operation.ready = True
    assert await operation == "answer"


async def test_a_key_without_watchers_is_dropped(purgatory: Purgatory[Op]) -> None:
    """A key is also dropped if its operations end before the turn is over."""
    operation = park(purgatory, "left")
    purgatory.check_soon("left")
    purgatory.check_soon("empty")
    operation.cancel()
    await asyncio.sleep(0)
    assert operation.calls == []
    assert not purgatory._soon
    check(purgatory, keys=0)


async def test_an_operation_parked_between_the_call_and_the_check_is_tried(purgatory: Purgatory[Op]) -> None:
    """The operation is tried, because an extra try is harmless and a missing try would be a lost check."""
    purgatory.check_soon("key")
    operation = park(purgatory, "key")
    await asyncio.sleep(0)
    assert operation.calls == ["try"]


async def test_a_key_named_while_it_is_checked_is_checked_again(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A call while the key is being checked causes another check afterwards."""

    def again(op: Op) -> None:
        if op.calls.count("try") == 2:
            purgatory.check_soon("a")
        elif op.calls.count("try") == 3:
            op.ready = True

    op = Op(5, on_try=again)
    purgatory.try_complete_else_watch(op, ["a"])
    purgatory.check_soon("a")
    await clock.settle()
    assert op.calls == ["try"] * 3 + ["complete"]


async def test_a_call_from_a_callback_is_a_separate_check(purgatory: Purgatory[Op]) -> None:
    """A call from a callback starts a separate check, which the running check does not include."""
    second = park(purgatory, "b", ready=False)
    first = park(purgatory, "a", on_complete=lambda _: purgatory.check_soon("b"))
    first.ready = second.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert second.outcome is Outcome.PENDING
    await asyncio.sleep(0)
    assert second.outcome is Outcome.COMPLETED


async def test_a_check_within_a_later_check_is_queued(purgatory: Purgatory[Op]) -> None:
    """As in every callback, the nested check returns 0 and runs before the slice ends."""
    counted: list[int] = []
    trying = park(purgatory, "a")
    trying._on_try = lambda _: counted.append(purgatory.check_and_complete("b"))
    first = park(purgatory, "a")
    first._on_complete = lambda _: counted.append(purgatory.check_and_complete("b"))
    second = park(purgatory, "b")
    first.ready = second.ready = True
    purgatory.check_soon("a")
    await turns_until(lambda: not purgatory._soon)
    assert counted == [0, 0]
    assert second.outcome is Outcome.COMPLETED
    purgatory._check()


async def test_an_operation_that_raises_is_reported_and_the_others_are_tried(
    purgatory: Purgatory[Op], reported: list[dict[str, Any]]
) -> None:
    """An operation that raises prevents neither other tries on its key nor the checks of other keys."""

    def boom(operation: Op) -> None:
        if operation.ready:
            raise Boom

    bad = park(purgatory, "a", on_try=boom)
    same, other = park(purgatory, "a"), park(purgatory, "b")
    bad.ready = same.ready = other.ready = True
    purgatory.check_soon("a")
    purgatory.check_soon("b")
    await asyncio.sleep(0)
    assert [bad.outcome, same.outcome, other.outcome] == [Outcome.FAILED, Outcome.COMPLETED, Outcome.COMPLETED]
    assert [type(context["exception"]) for context in reported] == [Boom]


async def test_a_key_whose_comparison_raised_once_is_checked_when_it_is_named_again(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The failed check is reported and dropped; it does not prevent the next check of the key."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if Key.broken:
                raise Boom
            return isinstance(other, Key)

    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    operation = park(purgatory, Key())
    purgatory.check_soon(Key())
    Key.broken = True
    await clock.settle()
    assert [type(error) for error in reported] == [Boom]
    Key.broken = False
    operation.ready = True
    purgatory.check_soon(Key())
    await clock.settle()
    assert operation.outcome is Outcome.COMPLETED


async def test_bad_keys_are_refused(purgatory: Purgatory[Op]) -> None:
    """An unhashable key raises TypeError at once, and nothing is scheduled."""
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.check_soon([])  # type: ignore[arg-type]
    assert not purgatory._soon
    assert not purgatory._soon.scheduled


def test_it_needs_a_running_loop() -> None:
    """Without a running loop it raises RuntimeError, and the key is not kept."""
    purgatory = Purgatory[Op]("soon")
    with pytest.raises(RuntimeError):
        purgatory.check_soon("key")
    assert not purgatory._soon
