"""The purgatory, compared with a model of dicts and lists after every step."""

from collections.abc import Hashable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from purgatory import DelayedOperation, Outcome, PurgatoryClosed, PurgatoryFull
from purgatory.core.operation.lifecycle import EXPIRED
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.sansio import RecordingHooks
from tests.strategies import ACTIONS, STEPS, endings, key_sets, keys, thresholds, timeouts

NAMES = {Outcome.COMPLETED: "completed", Outcome.EXPIRED: "expired", Outcome.CANCELLED: "cancelled"}


class ModelPurgatory(BasePurgatory):
    """A purgatory without an event loop, whose hooks record the reports."""

    def __init__(self, timer: BaseTimer, observer: Any, max_parked: int | None, per_key: int | None) -> None:
        hooks = RecordingHooks()
        super().__init__("model", timer, (Exception,), max_parked, per_key, [observer], hooks)
        self.reports: list[BaseException] = hooks.reported
        self.detached: list[object] = hooks.detached


class Subject(DelayedOperation[int]):
    """An operation whose condition is a flag, and which calls its purgatory when it is tried or completed."""

    def __init__(self, machine: "PurgatoryMachine", number: int, timeout: float | None, acts: tuple[str, str]) -> None:
        super().__init__(timeout)
        self.machine = machine
        self.number = number
        self.ready = False
        self.on_try, self.on_end = acts
        self.completions = 0
        self.expirations = 0
        self.tries = 0
        self.refused = False  # it is not parked, so forcing it does not enter the purgatory

    def try_complete(self) -> bool:
        assert self.outcome is Outcome.PENDING, "tried after its end"
        self.tries += 1
        if 1 < self.tries < 5:  # an operation whose every try requests another would never end
            self.machine.act(self, self.on_try)
        return self.ready

    def on_complete(self) -> int:
        self.completions += 1
        assert self.completions == 1
        assert not self.keys
        assert not self.scheduled
        self.machine.act(self, self.on_end)
        return self.number

    def on_expiration(self) -> None:
        self.expirations += 1
        assert self.outcome is Outcome.EXPIRED


class PurgatoryMachine(RuleBasedStateMachine):
    """The model: the keys with thresholds and the deadline of each waiting operation."""

    operations = Bundle("operations")

    @initialize(
        max_parked=st.one_of(st.none(), st.integers(1, 12)),
        per_key=st.one_of(st.none(), st.integers(1, 6)),
        tick_ms=st.sampled_from([1, 20]),
    )
    def begin(self, max_parked: int | None, per_key: int | None, tick_ms: int) -> None:
        self.clock = ManualClock(1000)
        self.timer = BaseTimer(tick_ms, 20, self.clock)
        self.limits = (max_parked, per_key)
        self.room = ModelPurgatory(self.timer, self, max_parked, per_key)
        self.tick_ms = tick_ms
        self.number = 0
        self.waiting: dict[Subject, dict[Hashable, Any]] = {}
        self.deadlines: dict[Subject, int | None] = {}
        self.ended: dict[str, int] = {"completed": 0, "expired": 0, "cancelled": 0, "failed": 0}
        self.submitted = 0
        self.depth = 0
        self.subjects: list[Subject] = []

    # Events keep the model up to date; the rules compare it with the purgatory

    def parked(self, event: Any) -> None:
        assert event.operation not in self.waiting
        self.waiting[event.operation] = dict.fromkeys(event.keys)
        self.deadlines[event.operation] = event.deadline_ms

    def _gone(self, event: Any, ending: str) -> None:
        keys = self.waiting.pop(event.operation, {})
        self.deadlines.pop(event.operation, None)
        assert sorted(map(str, event.keys)) == sorted(map(str, keys))
        assert event.operation.outcome.value == ending
        self.ended[ending] += 1

    def completed(self, event: Any) -> None:
        self._gone(event, "completed")

    def expired(self, event: Any) -> None:
        deadline_ms = event.deadline_ms
        assert deadline_ms is not None or self.closing
        assert self.closing or self.clock.time_ms >= deadline_ms, "expired early"
        self._gone(event, "expired")

    def cancelled(self, event: Any) -> None:
        self._gone(event, "cancelled")

    def failed(self, event: Any) -> None:
        self._gone(event, "failed")

    closing = False

    # What callbacks do

    def act(self, op: Subject, action: str) -> None:
        """Call the purgatory from a callback of ``op``."""
        others = [other for other in self.subjects if other is not op]
        other = others[(op.number * 7 + op.tries) % len(others)] if others else None
        if action == "raise":
            raise ValueError(f"on purpose, by {op.number}")
        if action == "check":
            done = self.room.check_and_complete("a") + self.room.check_and_complete("b", 5)
            assert done == 0 or op.refused, "a check within a callback of the room was not queued"
        elif action == "park" and self.depth < 3:
            self.depth += 1
            try:
                self._hand_over(0.4, ("nothing", "nothing"), ["a", "c"])
            finally:
                self.depth -= 1
        elif action == "cancel" and other is not None:
            other.cancel()
        elif action == "cancel_key":
            assert all(withdrawn.outcome is Outcome.CANCELLED for withdrawn in self.room.cancel_for_key("b"))
        elif action == "fail_key":
            self.room.fail_for_key("c", ValueError("from outside"))
        elif action == "extend":
            assert op.extend(1) is (op.outcome is Outcome.PENDING)
            if other is not None:
                self._extend(other, 2.5)
            if op in self.waiting:
                self.deadlines[op] = op.expiration_ms
        elif action == "force":
            op.force_complete()
            if other is not None and self.depth < 3:
                self.depth += 1
                try:
                    self._force(other)
                finally:
                    self.depth -= 1

    def _force(self, op: Subject) -> bool:
        pending = op.outcome is Outcome.PENDING
        try:
            done = op.force_complete()
        except ValueError:
            assert pending
            assert op.outcome is Outcome.FAILED
            return False
        assert done is (pending and op.outcome is Outcome.COMPLETED)
        return done

    def _extend(self, op: Subject, timeout: float | None) -> None:
        assert op.extend(timeout) is (op.outcome is Outcome.PENDING)
        if op in self.waiting:
            self.deadlines[op] = None if timeout is None else op.expiration_ms

    def _hand_over(self, timeout: float | None, acts: tuple[str, str], wanted: Any, ready: bool = False) -> Subject:
        self.number += 1
        op = Subject(self, self.number, timeout, acts)
        op.ready = ready
        max_parked, per_key = self.limits
        parked = len(self.waiting)
        full = max_parked is not None and parked >= max_parked
        counts = {key: sum(key in watched for watched in self.waiting.values()) for key in wanted}
        full = full or (per_key is not None and any(count >= per_key for count in counts.values()))
        try:
            done = self.room.try_complete_else_watch(op, wanted)
        except PurgatoryFull:
            assert full or self.depth
            assert op.outcome is Outcome.PENDING
            assert not op.keys
            op.refused = True
            return op
        except PurgatoryClosed:
            assert self.closing
            assert op.outcome is Outcome.PENDING
            op.refused = True
            return op
        except ValueError:
            assert op.outcome is Outcome.FAILED
            self.submitted += 1
            self.subjects.append(op)
            return op
        self.submitted += 1
        assert done is (op.outcome is Outcome.COMPLETED)
        # Within a callback the model still counts the operation that is just leaving.
        assert not (full and op.outcome is Outcome.PENDING) or self.depth
        if op in self.waiting and isinstance(wanted, Mapping):
            self.waiting[op] = dict(wanted)
        self.subjects.append(op)
        return op

    # The rules

    @rule(
        target=operations,
        timeout=timeouts,
        on_try=st.sampled_from(["nothing"] * 6 + ACTIONS),
        on_end=st.sampled_from(["nothing"] * 6 + ACTIONS),
        wanted=st.one_of(key_sets, thresholds),
        ready=st.sampled_from([False, False, False, True]),
    )
    def submit(self, timeout: float | None, on_try: str, on_end: str, wanted: Any, ready: bool) -> Subject:
        return self._hand_over(timeout, (on_try, on_end), wanted, ready)

    @rule(op=operations, ready=st.booleans())
    def change(self, op: Subject, ready: bool) -> None:
        op.ready = ready

    @rule(key=keys, value=st.one_of(st.none(), st.integers(-3, 9)))
    def check(self, key: Hashable, value: int | None) -> None:
        """A check tries every operation on the key whose threshold is reached; operations without side effects, in
        order.
        """
        expected = [
            op
            for op, watched in self.waiting.items()
            if key in watched and (value is None or watched[key] is None or watched[key] <= value)
        ]
        quiet = all(op.on_try == op.on_end == "nothing" for op in self.waiting)
        tries = {op: op.tries for op in self.waiting}
        completed = self.ended["completed"]
        done = self.room.check_and_complete(key, value)
        assert done == self.ended["completed"] - completed or not quiet
        assert done <= self.ended["completed"] - completed
        if quiet:
            assert {op for op in tries if op.tries > tries[op]} == set(expected)
            assert done == sum(op.ready for op in expected)

    @rule(op=operations, ending=endings)
    def end(self, op: Subject, ending: str) -> None:
        pending = op.outcome is Outcome.PENDING
        if ending == "force":
            self._force(op)
        elif ending == "cancel":
            assert op.cancel() is pending
        else:
            parked = op in self.waiting
            if parked and self.deadlines[op] is not None and self.deadlines[op] > self.clock.time_ms:  # type: ignore[operator]
                return  # only the timer may say so
            if parked and self.deadlines[op] is None:
                return
            op.run()
        assert op.outcome is not Outcome.PENDING

    @rule(key=keys)
    def cancel_for_key(self, key: Hashable) -> None:
        expected = [op for op, watched in self.waiting.items() if key in watched]
        assert self.room.cancel_for_key(key) == sorted(expected, key=lambda op: op._op_id)

    @rule(key=keys)
    def fail_for_key(self, key: Hashable) -> None:
        expected = [op for op, watched in self.waiting.items() if key in watched]
        error = ValueError("from outside")
        assert self.room.fail_for_key(key, error) == len(expected)
        assert all(op._value.error is error for op in expected)

    @rule(op=operations, timeout=timeouts)
    def extend(self, op: Subject, timeout: float | None) -> None:
        self._extend(op, timeout)

    @rule(advance_ms=st.one_of(st.integers(0, 30), st.integers(0, 40_000)))
    def time_passes(self, advance_ms: int) -> None:
        """Due operations expire in deadline order, unless a callback of another operation ends them first."""
        self.clock.time_ms += advance_ms
        self.timer.expire_due(self.clock.time_ms)
        while self.timer.next_expiration_ms is not None and self.timer.next_expiration_ms <= self.clock.time_ms:
            self.timer.expire_due(self.clock.time_ms)
        for op, deadline_ms in self.deadlines.items():
            assert deadline_ms is None or deadline_ms > self.clock.time_ms, f"{op.number} is late"

    @rule()
    def bad_input_changes_nothing(self) -> None:
        op = Subject(self, 0, 1, ("nothing", "nothing"))
        for bad in ([], {}, "a", [["a"]], {"a": "b"}, None):
            try:
                self.room.try_complete_else_watch(op, bad)  # type: ignore[arg-type]
            except (ValueError, TypeError):
                continue
            raise AssertionError(f"{bad!r} was taken")
        assert op.tries == 0

    # What always holds

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "room"):
            return
        STEPS["purgatory"] += 1
        assert not self.room.detached, "no observer raises here"
        self.room._check()
        statistics = self.room.statistics()
        assert statistics.parked == len(self.room) == len(self.waiting)
        assert statistics.watched == sum(map(len, self.waiting.values()))
        assert statistics.keys == len(set().union(*self.waiting.values()))
        assert statistics.num_delayed == sum(deadline is not None for deadline in self.deadlines.values())
        assert self.timer.size == statistics.num_delayed
        assert statistics.submitted == self.submitted
        assert {name: getattr(statistics, name) for name in self.ended} == self.ended
        assert self.submitted == sum(self.ended.values()) + len(self.waiting), "the counters do not balance"
        for op, watched in self.waiting.items():
            assert op.outcome is Outcome.PENDING
            assert op.completions == 0
            assert set(op.keys) == set(watched)
            deadline_ms = self.deadlines[op]
            assert deadline_ms is None or op.expiration_ms == deadline_ms
        for op in self.subjects:
            assert (
                op.completions == (op.outcome in (Outcome.COMPLETED, Outcome.EXPIRED)) or op.outcome is Outcome.FAILED
            )
            assert op.expirations == (op.outcome is Outcome.EXPIRED)

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        self.closing = True
        self.room._core.closed = True
        while self.room._core.expire_some(5):
            self.room._check()
        assert not self.waiting
        assert self.timer.size == 0
        assert self.ended.keys() == {"completed", "expired", "cancelled", "failed"}
        assert EXPIRED == 2


TestPurgatoryModel = PurgatoryMachine.TestCase
