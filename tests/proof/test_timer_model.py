"""The timer, compared with a sorted list after every step."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from purgatory.core.timer.task import TimerTask
from purgatory.core.timer.timer_core import TimerCore
from tests.core.timer.bench import take_everything_off
from tests.strategies import STEPS, delays_ms, ticks


class Noted(TimerTask):
    """A task that records its run, and may call the timer."""

    def __init__(self, machine: "TimerMachine", number: int, then: int) -> None:
        super().__init__(0)
        self.machine = machine
        self.number = number
        self.then = then

    def run(self) -> None:
        self.machine.has_run(self)


class TimerMachine(RuleBasedStateMachine):
    """The model: of each scheduled task its deadline, rounded up, and the number of its adding.

    What was due before it was added has no place in the order: it runs with the next call.
    """

    tasks = Bundle("tasks")

    @initialize(
        tick_ms=ticks,
        wheel_size=st.sampled_from([2, 3, 20]),
        start_ms=st.integers(100, 10**6),
        early_from=st.sampled_from([1, 3, 1000]),
    )
    def begin(self, tick_ms: int, wheel_size: int, start_ms: int, early_from: int) -> None:
        self.tick_ms = tick_ms
        self.now_ms = start_ms
        self.early_from = early_from
        self.core = TimerCore(tick_ms, wheel_size, start_ms, self._on_error, (Exception,), early_from)
        self.model: dict[int, tuple[int, int]] = {}
        self.ordered: set[int] = set()
        self.added = 0
        self.number = 0
        self.ran: list[int] = []
        self.raised = 0

    def _on_error(self, error: BaseException, task: Any) -> None:
        self.raised += 1

    def _schedule(self, task: Noted, delay_ms: int) -> None:
        due_ms = self.now_ms + delay_ms
        self.core.schedule(task, due_ms, self.now_ms)
        self.ordered.discard(task.number)
        if due_ms > self.now_ms:
            due_ms += -due_ms % self.tick_ms
        if due_ms >= self.now_ms:
            self.ordered.add(task.number)
        self.added += 1
        self.model[task.number] = (due_ms, self.added)
        assert task.scheduled
        assert task.expiration_ms == due_ms

    def has_run(self, task: Noted) -> None:
        """Check a task that runs: it was scheduled, and its time has come."""
        due_ms, order = self.model.pop(task.number)
        assert due_ms <= self.now_ms, f"{self.now_ms - due_ms} ms early"
        assert not task.scheduled
        self.ran.append(task.number)
        if (due_ms, order) in self.due:
            self.fired.append((due_ms, order))
        if task.then == 1:
            self._schedule(task, 0)
        elif task.then == 2:
            self._schedule(task, 25)
        elif task.then == 3:
            raise ValueError("on purpose")
        elif task.then == 4:
            assert self.core.expire_due(self.now_ms + 10**9) == 0

    @rule(target=tasks, delay_ms=delays_ms, then=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]))
    def add(self, delay_ms: int, then: int) -> Noted:
        self.number += 1
        task = Noted(self, self.number, then)
        self._schedule(task, delay_ms)
        return task

    @precondition(lambda self: bool(self.model))
    @rule(target=tasks, pick=st.integers(0, 100))
    def add_beside(self, pick: int) -> Noted:
        """Add a task with the deadline of another: they run in order of arrival, whatever their levels."""
        due_ms = sorted(self.model.values())[pick % len(self.model)][0]
        return self.add(max(due_ms - self.now_ms, 0), 0)

    @rule(task=tasks, delay_ms=delays_ms)
    def add_again(self, task: Noted, delay_ms: int) -> None:
        self._schedule(task, delay_ms)

    @rule(task=consumes(tasks))
    def cancel(self, task: Noted) -> None:
        assert task.cancel() is (self.model.pop(task.number, None) is not None)
        assert not task.scheduled

    @rule(advance_ms=st.one_of(st.integers(0, 50), st.integers(0, 10**7)))
    def stand_still_or_jump(self, advance_ms: int) -> None:
        """Advance the time without calling the timer."""
        self.now_ms += advance_ms

    @precondition(lambda self: bool(self.model))
    @rule(pick=st.integers(0, 100))
    def stand_still_until_one_is_due(self, pick: int) -> None:
        """Advance the time until a task is due, so that later tasks meet it in an unprocessed bucket."""
        self.now_ms = max(self.now_ms, sorted(self.model.values())[pick % len(self.model)][0])

    def _expire(self, limit: int) -> int:
        self.fired: list[tuple[int, int]] = []
        due = self.due = sorted(
            self.model[number] for number in self.ordered & set(self.model) if self.model[number][0] <= self.now_ms
        )
        others = [number for number, entry in self.model.items() if entry[0] <= self.now_ms]
        before = len(self.ran)
        ran = self.core.expire_due(self.now_ms, limit)
        assert ran == len(self.ran) - before
        assert self.fired == due[: len(self.fired)], "not in the order of deadlines and of arrival"
        if not limit:
            assert self.fired == due, "what was due did not run"
            assert set(others) <= set(self.ran[before:])
        return ran

    @rule()
    def expire(self) -> None:
        self._expire(0)

    @rule(limit=st.integers(1, 5))
    def expire_a_slice(self, limit: int) -> None:
        assert self._expire(limit) <= limit

    @rule(limit=st.integers(1, 5))
    def cascade_early(self, limit: int) -> None:
        """Move tasks early, which does not affect when and in which order they run."""
        due = self.core.is_due(self.now_ms)
        early = self.core.next_early_ms() <= self.now_ms
        moved = self.core.cascade_early(self.now_ms, limit)
        assert moved <= limit
        assert (moved > 0) is (early and not due and len(self.model) >= self.early_from)

    @precondition(lambda self: bool(self.model))
    @rule(pick=st.integers(0, 100), before_ms=st.integers(1, 500), limit=st.integers(1, 5))
    def cascade_shortly_before_one_is_due(self, pick: int, before_ms: int, limit: int) -> None:
        """Partially cascade the buckets, on every level, that expire together with the task."""
        due_ms = sorted(self.model.values())[pick % len(self.model)][0]
        self.now_ms = max(self.now_ms, due_ms - before_ms)
        self._expire(0)
        self.cascade_early(limit)

    @precondition(lambda self: bool(self.model))
    @rule()
    def go_to_the_next_bucket(self) -> None:
        """Advance to the next bucket, whose time is never later than the earliest deadline."""
        next_ms = self.core.next_expiration_ms
        assert next_ms is not None
        assert next_ms <= max(self.now_ms, min(self.model.values())[0])
        self.now_ms = max(self.now_ms, next_ms)
        self._expire(0)

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "core"):
            STEPS["timer"] += 1
            self.core._check()
            assert self.core.size == len(self.model)
            if not self.model:
                assert self.core.next_expiration_ms is None

    def teardown(self) -> None:
        if hasattr(self, "core"):
            tasks = take_everything_off(self.core)
            numbers: list[int] = [task.number for task in tasks]
            assert sorted(numbers) == sorted(self.model)
            in_order = sorted(self.ordered & set(self.model), key=self.model.__getitem__)
            assert [number for number in numbers if number in self.ordered] == in_order
            assert self.core.size == 0


TestTimerModel = TimerMachine.TestCase
