"""``check_soon``: once per turn of the loop, in slices, every key in its turn, and none is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.desk import Desk
from purgatory.rounds import Rounds
from purgatory.testing import VirtualClock

from .helpers import Boom, Op
from .sansio import HandClock, QuietRoom, make_room


@pytest.fixture
async def purgatory(clock: VirtualClock) -> AsyncIterator[Purgatory[Op]]:
    """An open purgatory in virtual time."""
    async with Purgatory[Op]("soon", clock=clock) as purgatory:
        yield purgatory
        purgatory._check()
        assert not purgatory._soon


def park(purgatory: Any, key: Any, **arguments: Any) -> Op:
    operation = Op(**arguments)
    purgatory.try_complete_else_watch(operation, [key])
    operation.calls.clear()
    return operation


# Coalescing


async def test_it_checks_at_the_end_of_the_turn_and_once(purgatory: Purgatory[Op]) -> None:
    """A thousand calls in one turn are one check, and none before the turn is over."""
    operation = park(purgatory, "key")
    for _ in range(1000):
        purgatory.check_soon("key")
    assert operation.calls == []
    await asyncio.sleep(0)
    assert operation.calls == ["try"]
    await asyncio.sleep(0)
    assert operation.calls == ["try"]


async def test_it_completes_whose_condition_holds(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The condition counts as it is when the check is done."""
    operation = park(purgatory, "key", name="answer")
    purgatory.check_soon("key")
    operation.ready = True
    assert await operation == "answer"


async def test_a_key_that_nobody_waits_on_is_forgotten(purgatory: Purgatory[Op]) -> None:
    """Also if those who waited have gone before the turn was over."""
    operation = park(purgatory, "left")
    purgatory.check_soon("left")
    purgatory.check_soon("empty")
    operation.cancel()
    await asyncio.sleep(0)
    assert operation.calls == []


async def test_who_arrives_after_the_call_and_before_the_check_is_tried(purgatory: Purgatory[Op]) -> None:
    """A try too many does no harm, one too few would."""
    purgatory.check_soon("key")
    operation = park(purgatory, "key")
    await asyncio.sleep(0)
    assert operation.calls == ["try"]


async def test_from_within_a_callback(purgatory: Purgatory[Op]) -> None:
    """It is no part of the check that is going on."""
    second = park(purgatory, "b", ready=False)
    first = park(purgatory, "a", on_complete=lambda _: purgatory.check_soon("b"))
    first.ready = second.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert second.outcome is Outcome.PENDING
    await asyncio.sleep(0)
    assert second.outcome is Outcome.COMPLETED


async def test_an_operation_that_raises_is_reported_and_the_others_are_tried(
    purgatory: Purgatory[Op], reported: list[dict[str, Any]]
) -> None:
    """One bad operation keeps neither its key nor other keys from their check."""

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


async def test_bad_keys_are_refused(purgatory: Purgatory[Op]) -> None:
    """An unhashable key is told at once, and nothing is scheduled."""
    with pytest.raises(TypeError):
        purgatory.check_soon([])  # type: ignore[arg-type]
    assert not purgatory._soon


def test_it_needs_a_running_loop() -> None:
    """Without one there is no turn to end, and the key is not kept."""
    purgatory = Purgatory[Op]("soon")
    with pytest.raises(RuntimeError):
        purgatory.check_soon("key")
    assert not purgatory._soon


# Slices


async def turns_until(done: Callable[[], bool]) -> int:
    turns = 0
    while not done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 10_000
    return turns


async def test_many_watchers_are_tried_in_slices(purgatory: Purgatory[Op]) -> None:
    """Other tasks have their turns between two slices, and everyone is tried once."""
    watchers = [park(purgatory, "key") for _ in range(5000)]
    purgatory.check_soon("key")
    assert await turns_until(lambda: not purgatory._soon) > 10
    assert all(watcher.calls == ["try"] for watcher in watchers)


async def test_many_keys_are_checked_in_slices(purgatory: Purgatory[Op]) -> None:
    """Neither does a crowd of keys hold the loop, nor does each key take a portion of its own."""
    watchers = [park(purgatory, number) for number in range(5000)]
    for number in range(5000):
        purgatory.check_soon(number)
    assert 10 < await turns_until(lambda: not purgatory._soon) < 500
    assert all(watcher.calls == ["try"] for watcher in watchers)


async def test_a_short_key_does_not_wait_for_a_long_one(purgatory: Purgatory[Op]) -> None:
    """Of a key with 5000 watchers and one with a single one, the single one is tried within the first slice."""
    for _ in range(5000):
        park(purgatory, "long")
    single = park(purgatory, "short")
    purgatory.check_soon("long")
    purgatory.check_soon("short")
    await asyncio.sleep(0)
    assert single.calls == ["try"]
    assert purgatory._soon
    await turns_until(lambda: not purgatory._soon)


async def test_a_key_that_names_itself_again_and_again_leaves_the_others_their_turn(
    purgatory: Purgatory[Op],
) -> None:
    """An endless chain of checks on one key does not starve a long walk along another."""
    going_on = True

    def again(_: Op) -> None:
        if going_on:
            purgatory.check_soon("chain")

    park(purgatory, "chain", on_try=again)
    watchers = [park(purgatory, "long") for _ in range(2000)]
    purgatory.check_soon("chain")
    purgatory.check_soon("long")
    await turns_until(lambda: all(watcher.calls for watcher in watchers))
    going_on = False
    await turns_until(lambda: not purgatory._soon)


async def test_a_key_named_in_every_turn_is_not_walked_many_times_at_once(purgatory: Purgatory[Op]) -> None:
    """Work that cannot keep up is done once for all that came meanwhile: two walks at most for any number of calls."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert watchers[0].calls
    assert not watchers[-1].calls
    while not watchers[-1].calls:
        purgatory.check_soon("key")
        await asyncio.sleep(0)
    await turns_until(lambda: not purgatory._soon)
    assert {len(watcher.calls) for watcher in watchers} == {2}


async def test_ended_between_two_slices(purgatory: Purgatory[Op]) -> None:
    """Who has ended is left out, and the walk goes on behind them, even if all around the mark have gone."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    mark = sum(bool(watcher.calls) for watcher in watchers)
    assert 0 < mark < 1000
    for watcher in watchers[mark - 5 : mark + 500]:
        watcher.cancel()
    await turns_until(lambda: not purgatory._soon)
    assert not any(watcher.calls for watcher in watchers[mark : mark + 500])
    assert all(watcher.calls == ["try"] for watcher in watchers[mark + 500 :])


async def test_the_key_is_emptied_and_filled_again_between_two_slices(purgatory: Purgatory[Op]) -> None:
    """The walk ends; the newcomers have had a try of their own, and a call from then on tries them."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert len(purgatory.cancel_for_key("key")) == 3000
    newcomer = park(purgatory, "key")
    await turns_until(lambda: not purgatory._soon)
    assert newcomer.calls == []
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert newcomer.calls == ["try"]
    assert not watchers[-1].calls


async def test_closing_answers_everyone_in_the_midst_of_a_walk(clock: VirtualClock) -> None:
    """What is still to be checked is forgotten, and nobody is answered twice."""
    async with Purgatory[Op]("soon", clock=clock) as purgatory:
        watchers = [park(purgatory, "key") for _ in range(3000)]
        for watcher in watchers:
            watcher.ready = True
        purgatory.check_soon("key")
        await asyncio.sleep(0)
    await turns_until(lambda: not purgatory._soon)
    assert {watcher.completions for watcher in watchers} == {1}
    assert {watcher.outcome for watcher in watchers} == {Outcome.COMPLETED, Outcome.EXPIRED}


# The rounds themselves


@pytest.fixture
def room() -> QuietRoom:
    """A room without an event loop."""
    return make_room(HandClock())


def rounds_of(room: QuietRoom) -> Rounds:
    desk: Desk = room._desk
    return Rounds(desk)


def test_a_portion_is_spent_on_several_keys(room: QuietRoom) -> None:
    """Ten tries serve ten keys of one watcher each."""
    watchers = [park(room, number) for number in range(25)]
    rounds = rounds_of(room)
    for number in range(25):
        rounds.add(number)
    rounds.work(10)
    assert [bool(watcher.calls) for watcher in watchers] == [True] * 10 + [False] * 15


def test_keys_take_turns(room: QuietRoom) -> None:
    """Each portion goes to the next key in the queue."""
    order: list[str] = []
    for key in "ab":
        for number in range(3):
            park(room, key, name=f"{key}{number}", on_try=lambda operation: order.append(operation.name))
    order.clear()
    rounds = rounds_of(room)
    rounds.add("a")
    rounds.add("b")
    while rounds:
        rounds.work(1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("keys", [["a"], {"a": 5}])
def test_an_interrupt_loses_neither_the_walk_nor_the_other_keys(room: QuietRoom, keys: Any) -> None:
    """Ctrl-C in the midst of a slice passes through; the next slice goes on behind the one that it struck."""
    watchers = [Op(name=str(number)) for number in range(5)]
    for watcher in watchers:
        room.try_complete_else_watch(watcher, keys)
        watcher.calls.clear()
    other = park(room, "b")

    def interrupt(operation: Op) -> None:
        operation._on_try = lambda _: None
        raise KeyboardInterrupt

    watchers[2]._on_try = interrupt
    rounds = rounds_of(room)
    rounds.add("a")
    rounds.add("b")
    with pytest.raises(KeyboardInterrupt):
        rounds.work(10)
    rounds.work(10)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 5
    assert other.calls == ["try"]
    assert not rounds
    room._check()


def test_a_key_named_before_its_turn_is_checked_once(room: QuietRoom) -> None:
    """Only what is named while its watchers are being tried begins anew."""
    watchers = [park(room, "key") for _ in range(4)]
    rounds = rounds_of(room)
    rounds.add("key")
    rounds.add("key")
    rounds.work(2)
    rounds.add("key")
    rounds.add("key")
    while rounds:
        rounds.work(3)
    assert {len(watcher.calls) for watcher in watchers} == {2}
    rounds.add("key")
    rounds.work(10)
    assert {len(watcher.calls) for watcher in watchers} == {3}


def test_a_hundred_thousand_keys_cost_no_more_each_than_a_thousand(room: QuietRoom) -> None:
    """Taking the next key does not search among those that have been taken."""
    rounds = rounds_of(room)
    for number in range(100_000):
        rounds.add(number)
    portions = 0
    while rounds:
        rounds.work(32)
        portions += 1
    assert portions == 100_000 // 32
    assert not rounds._walks


def test_a_key_without_watchers_counts_as_one_try() -> None:
    """So a crowd of keys that nobody waits on is worked off in portions, too."""
    rounds = Rounds(make_room(HandClock())._desk)
    for number in range(7):
        rounds.add(number)
    portions = 0
    while rounds:
        rounds.work(3)
        portions += 1
    assert portions == 3


async def test_a_key_whose_comparison_raised_once_is_checked_when_it_is_named_again(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The check that could not be made is reported and over; it does not stand in the way of the next one."""

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


async def test_a_check_within_a_later_check_is_queued(purgatory: Purgatory[Op]) -> None:
    """As in every callback it returns 0, and is done before the slice ends."""
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
