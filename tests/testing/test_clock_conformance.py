"""The contract of a clock, tested on the virtual and on the real clock, independent of the speed of the machine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Clock, MonotonicClock
from tests.helpers import Op

Pass = Callable[[float], Awaitable[None]]


@pytest.fixture(params=["virtual", "real"])
def any_clock(request: pytest.FixtureRequest) -> Clock:
    return VirtualClock(77.7775) if request.param == "virtual" else MonotonicClock()


@pytest.fixture
def let_pass(any_clock: Clock) -> Pass:
    """Let this number of seconds pass on the clock; on the real clock possibly more."""
    if isinstance(any_clock, VirtualClock):
        return any_clock.advance

    async def sleep(seconds: float) -> None:
        until_ms = any_clock.ceil_ms() + round(seconds * 1000)
        has_passed = False
        while not has_passed:
            rang = asyncio.Event()
            any_clock.call_at(until_ms, rang.set)
            await rang.wait()  # also where the process was stopped meanwhile: earlier alarms ring first
            has_passed = any_clock.now_ms() >= until_ms

    return sleep


async def test_the_time_is_whole_milliseconds_and_never_goes_back(any_clock: Clock) -> None:
    """The time rounded down is at most one below the time rounded up."""
    times: list[int] = []
    for _ in range(1000):
        times += [any_clock.now_ms(), any_clock.ceil_ms()]
    assert all(type(time) is int for time in times)
    down, up = times[::2], times[1::2]
    assert down == sorted(down)
    assert up == sorted(up)
    assert all(later >= earlier for earlier, later in zip(down, up, strict=True))
    assert up[0] - down[0] <= 1 or isinstance(any_clock, MonotonicClock)


async def test_an_alarm_does_not_ring_in_the_same_turn(any_clock: Clock) -> None:
    """An alarm for a time that has come rings in a later turn of the loop."""
    rung: list[int] = []
    rang = asyncio.Event()

    def ring() -> None:
        rung.append(any_clock.now_ms())
        rang.set()

    when_ms = any_clock.now_ms()
    any_clock.call_at(when_ms - 5, ring)
    any_clock.call_at(when_ms, ring)
    assert rung == []
    await rang.wait()
    await asyncio.sleep(0)
    assert len(rung) == 2


async def test_alarms_that_are_called_off_do_not_ring(any_clock: Clock, let_pass: Pass) -> None:
    """Cancelling an alarm is safe before and after it rings, and twice."""
    rung: list[str] = []
    off = any_clock.call_at(any_clock.now_ms() + 2, lambda: rung.append("off"))
    due = any_clock.call_at(any_clock.now_ms(), lambda: rung.append("due"))
    on = any_clock.call_at(any_clock.now_ms() + 2, lambda: rung.append("on"))
    off.cancel()
    due.cancel()
    off.cancel()
    await let_pass(0.02)
    assert rung == ["on"]
    on.cancel()


async def test_the_work_time_is_real_or_grows(any_clock: Clock) -> None:
    """The work time is real time on a real clock, and never decreases on another clock."""
    first, second = any_clock.work_time(), any_clock.work_time()
    if isinstance(any_clock, MonotonicClock):
        assert first is None
    else:
        assert first is not None
        assert second is not None
        assert second > first


@pytest.mark.parametrize("tick_ms", [1, 7])
async def test_nothing_fires_early(any_clock: Clock, let_pass: Pass, tick_ms: int) -> None:
    """Callbacks and operations run at or after their deadlines, in deadline order."""
    fired: list[tuple[int, int]] = []
    async with SystemTimer(clock=any_clock, tick_ms=tick_ms) as timer:
        due: dict[int, int] = {}
        expirations: list[int | None] = []

        def note(number: int) -> None:
            fired.append((number, any_clock.now_ms()))

        for number, delay in enumerate((0.005, 0.0, 0.0131, 0.001, 0.025)):
            due[number] = any_clock.now_ms() + round(delay * 1000 - 0.5)
            expirations.append(timer.call_later(delay, note, number).expiration_ms)
        await let_pass(0.05)
        while len(fired) < len(due):
            await let_pass(0.01)
    assert sorted(number for number, _ in fired) == list(due)
    for number, when_ms in fired:
        assert when_ms >= due[number]
    assert [number for number, _ in fired] == sorted(due, key=lambda number: (expirations[number] or 0, number))


async def test_an_operation_waits_at_least_its_timeout(any_clock: Clock, let_pass: Pass) -> None:
    """The time between submission and expiry is at least the timeout, measured by the clock and rounded down."""
    async with Purgatory[Op]("test", clock=any_clock) as purgatory:
        ended: list[int] = []
        op = Op(0.012, name="x", on_complete=lambda _: ended.append(any_clock.now_ms()))
        begun_ms = any_clock.now_ms()
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        while not task.done():
            await let_pass(0.005)
        assert op.outcome is Outcome.EXPIRED
        assert ended[0] - begun_ms >= 12
        assert purgatory.statistics().lateness.count == 1


async def test_completing_before_the_deadline(any_clock: Clock, let_pass: Pass) -> None:
    """An operation that completes before its deadline does not expire."""
    async with Purgatory[Op]("test", clock=any_clock) as purgatory:
        op = Op(0.01, name="x")
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        await asyncio.sleep(0)
        op.ready = True
        if purgatory.check_and_complete("a"):
            assert await task == "x"
            await let_pass(0.02)
            assert op.calls == ["try", "try", "complete"]


async def test_a_long_sleep_is_not_polled(any_clock: Clock, let_pass: Pass) -> None:
    """While nothing is due, the reaper does not run, and reads the clock a bounded number of times."""
    asked = 0

    class Counting(Clock):
        def now_ms(self) -> int:
            nonlocal asked
            asked += 1
            return any_clock.now_ms()

        def ceil_ms(self) -> int:
            return any_clock.ceil_ms()

        def call_at(self, when_ms: int, callback: Callable[[], object]) -> Any:
            return any_clock.call_at(when_ms, callback)

    async with SystemTimer(clock=Counting()) as timer:
        timer.call_later(3600, print)
        await let_pass(0.001)
        await asyncio.sleep(0)
        before = asked
        await let_pass(0.03)
        assert asked - before <= 3


class TestOwnClock:
    """A user's clock that implements only the required methods."""

    def test_two_methods_are_enough(self) -> None:
        """The default ``ceil_ms`` is a millisecond later, ``time`` is the same in seconds, and work time is real
        time.
        """

        class Wall(Clock):
            def now_ms(self) -> int:
                return 41

        clock = Wall()
        assert clock.ceil_ms() == 42
        assert clock.time() == 0.042
        assert clock.work_time() is None
        with pytest.raises(NotImplementedError):
            clock.call_at(50, print)

    async def test_the_time_in_seconds_is_never_early(self, any_clock: Clock) -> None:
        """A deadline that is computed from ``time()`` is not before ``now_ms()``."""
        before_ms = any_clock.now_ms()
        assert any_clock.time() * 1000 >= before_ms


class TestMonotonicClock:
    """The default clock, with a time that the test sets."""

    @pytest.fixture
    def monotonic(self, monkeypatch: pytest.MonkeyPatch) -> MonotonicClock:
        monkeypatch.setattr(MonotonicClock, "_monotonic", staticmethod(lambda: 12.3456))
        return MonotonicClock()

    def test_it_rounds_down_and_up(self, monotonic: MonotonicClock) -> None:
        """At 12345.x ms, deadlines up to 12345 ms have passed, and new delays count from 12346 ms."""
        assert (monotonic.now_ms(), monotonic.ceil_ms(), monotonic.time()) == (12_345, 12_346, 12.3456)

    @pytest.mark.parametrize(("when_ms", "at_once"), [(0, True), (12_344, True), (12_345, True), (12_346, False)])
    async def test_a_time_that_has_come_means_the_next_turn(
        self, monotonic: MonotonicClock, when_ms: int, at_once: bool
    ) -> None:
        """Only a time in the future is scheduled in the loop with a delay."""
        rung: list[int] = []
        alarm = monotonic.call_at(when_ms, lambda: rung.append(when_ms))
        assert hasattr(alarm._handle(), "when") is not at_once
        if not at_once:
            alarm.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rung == ([when_ms] if at_once else [])
        alarm.cancel()

    async def test_the_delay_is_what_is_left(self, monotonic: MonotonicClock) -> None:
        """An alarm in a thousand seconds is scheduled in the loop with a delay of a thousand seconds, not less."""
        alarm = monotonic.call_at(12_345 + 1_000_000, print)
        left = alarm._handle().when() - asyncio.get_running_loop().time()
        assert 999.9 < left < 1000.1
        alarm.cancel()
