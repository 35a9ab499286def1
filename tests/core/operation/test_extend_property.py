"""``extend`` in any schedule: each operation expires at its last deadline, and not before."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome
from purgatory.testing import ManualClock
from tests.helpers import Op
from tests.sansio import QuietPurgatory, make_purgatory, pass_time

STEP = st.one_of(
    st.tuples(st.just("park"), st.none() | st.integers(0, 3000)),
    st.tuples(st.just("extend"), st.integers(0, 12), st.none() | st.integers(0, 3000)),
    st.tuples(st.just("pass"), st.integers(0, 1500)),
    st.tuples(st.just("jump"), st.integers(0, 1500)),
    st.tuples(st.just("check"), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
)


@given(
    steps=st.lists(STEP, max_size=50),
    tick_ms=st.sampled_from([1, 1, 3, 20, 250]),
    wheel_size=st.sampled_from([2, 3, 20]),
)
def test_the_last_deadline_given_is_the_one_that_holds(
    steps: list[tuple[Any, ...]], tick_ms: int, wheel_size: int
) -> None:
    """In any schedule of parks, extensions, time and endings, each operation expires at its last, rounded deadline.

    A jump simulates a busy loop: time passes without a check, so an operation that is due may still be extended.
    """
    clock = ManualClock(1_000_000)
    room: QuietPurgatory = make_purgatory(clock, tick_ms=tick_ms, wheel_size=wheel_size)
    operations: list[Op] = []
    deadlines: list[float] = []
    expired: dict[int, int] = {}
    for step in steps:
        match step:
            case ("park", milliseconds):
                number = len(operations)
                operation = Op(
                    None if milliseconds is None else milliseconds / 1000,
                    on_expiration=lambda _, number=number: expired.setdefault(number, clock.time_ms),  # type: ignore[misc]
                )
                operations.append(operation)
                deadlines.append(_deadline(clock, milliseconds, tick_ms))
                room.try_complete_else_watch(operation, ["key", number])
            case ("extend", number, milliseconds) if number < len(operations):
                waits = operations[number].outcome is Outcome.PENDING
                assert operations[number].extend(None if milliseconds is None else milliseconds / 1000) == waits
                if waits:
                    deadlines[number] = _deadline(clock, milliseconds, tick_ms)
            case ("check", number) if number < len(operations):
                operations[number].ready = True
                room.check_and_complete(number)
            case ("cancel", number) if number < len(operations):
                operations[number].cancel()
            case ("pass", milliseconds):
                before_ms = clock.time_ms
                pass_time(clock, room, milliseconds)
                for number, at_ms in expired.items():
                    if at_ms > before_ms:
                        assert at_ms == max(deadlines[number], before_ms)
                    else:
                        assert at_ms >= deadlines[number]
            case ("jump", milliseconds):
                clock.time_ms += milliseconds
        room._check()
        assert room.num_delayed == sum(
            operation.outcome is Outcome.PENDING and deadline < float("inf")
            for operation, deadline in zip(operations, deadlines, strict=True)
        )
    waiting = [number for number, operation in enumerate(operations) if operation.outcome is Outcome.PENDING]
    pass_time(clock, room, 5000)
    for number in waiting:
        assert (operations[number].outcome is Outcome.PENDING) == (deadlines[number] == float("inf"))


def _deadline(clock: ManualClock, milliseconds: int | None, tick_ms: int) -> float:
    if milliseconds is None:
        return float("inf")
    wanted_ms = clock.time_ms + milliseconds
    return wanted_ms if milliseconds == 0 else wanted_ms + -wanted_ms % tick_ms
