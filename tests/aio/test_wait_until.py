"""``wait_until``: a task waits until a predicate is true."""

import asyncio
from typing import Any

import pytest

from purgatory import Event, Observer, Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import Op, Recorder, check


async def test_wait_until_returns_whether_the_predicate_held(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``wait_until`` returns True if the predicate holds, at once or later, and False at the deadline."""
    state = {"ready": True}
    assert await purgatory.wait_until(lambda: state["ready"], keys=["a"], timeout=5) is True
    state["ready"] = False
    true, false = (
        asyncio.create_task(purgatory.wait_until(lambda: state["ready"], keys=[key], timeout=5)) for key in "ab"
    )
    await clock.settle()
    state["ready"] = True
    assert purgatory.check_and_complete("a") == 1
    assert await true is True
    state["ready"] = False
    await clock.advance(5)
    assert await false is False


async def test_a_predicate_that_raises_reaches_the_waiter(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A predicate that raises fails only its own wait."""
    state: dict[str, int] = {"x": 1}
    task = asyncio.create_task(purgatory.wait_until(lambda: 1 // state["x"] == 5, keys=["a"], timeout=5))
    other = asyncio.create_task(purgatory.wait_until(lambda: state["x"] == 0, keys=["a"], timeout=5))
    await clock.settle()
    state["x"] = 0
    assert purgatory.check_and_complete("a") == 1
    with pytest.raises(ZeroDivisionError):
        await task
    assert await other


async def test_one_key(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``key=`` takes any hashable, and a check of exactly this key completes the wait."""
    ready: set[object] = set()
    keys = ("abc", ("a", 1), None)
    tasks = {
        key: asyncio.create_task(purgatory.wait_until(lambda k=key: k in ready, key=key, timeout=5)) for key in keys
    }
    await clock.settle()
    for key in keys:
        ready.add(key)
        assert purgatory.check("a") == 0
        assert purgatory.check(key) == 1
        assert await tasks[key] is True


async def test_a_threshold(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """With a mapping, a check whose value is below the threshold does not call the predicate."""
    calls: list[int] = []

    def second() -> bool:
        calls.append(1)
        return len(calls) == 2

    task = asyncio.create_task(purgatory.wait_until(second, keys={"a": 5}, timeout=5))
    await clock.settle()
    assert purgatory.check("a", 4) == 0
    assert len(calls) == 1
    assert purgatory.check("a", 5) == 1
    assert await task


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "a"}, r"wait_until\(\) takes a timeout or a deadline, got neither: timeout=None waits forever"),
        (
            {"key": "a", "timeout": 1, "deadline": 5},
            r"wait_until\(\) takes a timeout or a deadline, got both: timeout=1 and deadline=5",
        ),
        ({"timeout": 1}, r"wait_until\(\) takes key= or keys=, got neither"),
        ({"timeout": 1, "key": 1, "keys": [2]}, r"wait_until\(\) takes key= or keys=, got both: key=1 and keys=\[2\]"),
        ({"timeout": 1, "keys": "x"}, r"got 'x'; for one key, a wait takes key='x'"),
        ({"timeout": 0, "keys": "x"}, r"got 'x'; for one key, a wait takes key='x'"),
        ({"timeout": 1, "keys": 5}, r"got 5; for one key, a wait takes key=5"),
        ({"timeout": 1, "key": ["a"]}, r"got \['a'\]: for several keys use keys=\['a'\]"),
        ({"timeout": 1, "key": {"a": 5}}, r"got \{'a': 5\}: for several keys use keys=\{'a': 5\}"),
        ({"timeout": "1", "key": "a"}, r"timeout must be a number of seconds, got '1'"),
        ({"timeout": 1, "key": "a", "kind": 5}, r"kind must be a nonempty str or None, got 5"),
        ({"timeout": 1, "key": "a", "kind": ""}, r"kind must be a nonempty str or None, got ''"),
    ],
)
async def test_wrong_arguments(purgatory: Purgatory[Op], arguments: dict[str, Any], message: str) -> None:
    """The error names what to use instead, with the values, and the predicate is not called."""
    wait_until: Any = purgatory.wait_until
    with pytest.raises(TypeError, match=message):
        await wait_until(lambda: 1 / 0, **arguments)
    check(purgatory, submitted=0)


@pytest.mark.parametrize("time", [{"timeout": 0}, {"timeout": 0.0}, {"deadline": 1000.0}, {"deadline": -5}])
async def test_a_wait_of_zero_does_not_park(clock: VirtualClock, time: dict[str, Any]) -> None:
    """Without time to wait the predicate is called once; nothing is parked, counted, or refused.

    That holds in a full purgatory and in a closed one, too.
    """
    calls: list[bool] = []

    def called(answer: bool) -> bool:
        calls.append(answer)
        return answer

    observer = Recorder()
    async with Purgatory[Any]("full", clock=clock, max_parked=1, observers=[observer]) as purgatory:
        purgatory.try_complete_else_watch(Op(None, name="first"), ["a"])
        with pytest.raises(PurgatoryFull):
            await purgatory.wait_until(lambda: False, key="a", timeout=1)
        for _ in ("full", "closed"):
            before = purgatory.statistics()
            assert await purgatory.wait_until(lambda: called(False), key="a", **time) is False
            assert await purgatory.wait_until(lambda: called(True), keys=["a", "b"], **time) is True
            assert purgatory.statistics() == before
            await purgatory.aclose()
        with pytest.raises(PurgatoryClosed):
            await purgatory.wait_until(lambda: False, key="a", timeout=1)
    assert calls == [False, True, False, True]
    assert observer.events == [("parked", "first"), ("expired", "first")]


async def test_a_deadline_ahead_parks(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A deadline that has not passed is kept, rounded up to a millisecond, and never early."""
    start = purgatory.timer.time()
    task = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", deadline=start + 0.0101))
    await clock.advance(0.010)
    check(purgatory, parked=1)
    await clock.advance(0.001)
    assert await task is False


async def test_the_kind(clock: VirtualClock) -> None:
    """``kind=`` is the kind in events and dumps and the name in the ``repr``; the default is ``wait_until``."""
    kinds: list[str] = []

    class Listener(Observer):
        def parked(self, event: Event) -> None:
            kinds.append(event.kind)

        def expired(self, event: Event) -> None:
            kinds.append(event.kind)

    async with Purgatory[Any]("test", clock=clock, observers=[Listener()]) as purgatory:
        default = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=1))
        given = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=1, kind="GET /jobs/{id}"))
        await clock.settle()
        shown = purgatory.dump()["operations"]
        assert [entry["kind"] for entry in shown] == ["wait_until", "GET /jobs/{id}"]
        assert shown[0]["operation"] == "<wait_until PENDING on ['a'] timeout=1>"
        assert shown[1]["operation"] == "<GET /jobs/{id} PENDING on ['a'] timeout=1>"
        await clock.advance(1)
        assert not await default
        assert not await given
    assert kinds == ["wait_until", "GET /jobs/{id}"] * 2


async def test_an_override_of_park_is_honoured(clock: VirtualClock) -> None:
    """A subclass that overrides ``park`` also gets the operations of ``wait_until`` and ``wait_value``."""
    parked: list[Any] = []

    class Counting(Purgatory[Any]):
        async def park(self, operation: Any, keys: Any = (), *, key: Any = None) -> Any:
            parked.append(keys)
            return await super().park(operation, keys)

    async with Counting("test", clock=clock) as purgatory:
        assert await purgatory.wait_until(lambda: True, key="a", timeout=1)
        assert await purgatory.wait_value(lambda: 5, keys=["b"], timeout=1) == 5
    assert parked == [("a",), ["b"]]
