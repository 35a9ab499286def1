"""Record buffers: rows of values instead of event objects."""

from typing import Any

import pytest

from purgatory import Observer, Outcome, Purgatory
from purgatory.core.operation.lifecycle import CANCELLED, COMPLETED, EXPIRED, EXPIRED_BY_CLOSING, FAILED, OUTCOMES
from purgatory.core.stats.record_buffer import RecordBuffer, append_record
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op
from tests.sansio import make_purgatory, pass_time


class Pages(RecordBuffer):
    """A buffer that flushes a page after a fixed number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.pages: list[list[Any]] = []
        self.flush_at = rows * 8

    def flush(self) -> None:
        self.pages.append(self.values)
        self.values = []


class Interrupted(RecordBuffer):
    def flush(self) -> None:
        raise KeyboardInterrupt


class Broken(RecordBuffer):
    def flush(self) -> None:
        raise RuntimeError("no")


def test_each_ending_is_a_row_and_full_pages_are_flushed() -> None:
    """Each ending adds eight values in order; ``flush()`` is called when the list is long enough."""
    clock = ManualClock(1_000_000)
    buffer = Pages(2)
    room = make_purgatory(clock, name="p", observers=[buffer])
    operations = [Op(timeout=2.0) for _ in range(5)]
    for operation in operations:
        room.try_complete_else_watch(operation, ["a", "b"])
    pass_time(clock, room, 1000)
    operations[1].force_complete()
    operations[0].cancel()
    room.fail_for_key("a", ValueError("no"))
    number = room._core._notifier.instance
    parked_ms = 1_000_000
    cells = [cell for page in buffer.pages for cell in page] + buffer.values
    rows = [tuple(cells[start : start + 8]) for start in range(0, len(cells), 8)]
    common = (("a", "b"), parked_ms, parked_ms + 2_000, parked_ms + 1_000)
    states = [(1, 2), (3, 1), (4, 3), (4, 4), (4, 5)]
    assert rows == [(state, ("p", number), Op, op_id, *common) for state, op_id in states]
    assert [len(page) for page in buffer.pages] == [16, 16]


def test_the_numbers_of_the_states_are_public() -> None:
    """A buffer stores them, so a number never changes; the state of another outcome is the next number."""
    numbers = {COMPLETED: 1, EXPIRED: 2, CANCELLED: 3, FAILED: 4, EXPIRED_BY_CLOSING: 5}
    assert all(state == number for state, number in numbers.items())
    ends = [Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED, Outcome.EXPIRED]
    assert list(OUTCOMES[: len(numbers) + 1]) == [Outcome.PENDING, *ends]
    assert set(OUTCOMES) == set(Outcome)


def test_a_buffer_that_raises_is_detached() -> None:
    """The buffer is reported and counted, and receives nothing more; the operations end normally."""
    broken, sound = Broken(), Pages(100)
    room = make_purgatory(ManualClock(), observers=[broken, sound])
    for _ in range(2):
        operation = Op(timeout=None)
        room.try_complete_else_watch(operation, ["a"])
        assert operation.force_complete()
    assert room.statistics().observers_detached == 1
    assert len(broken.values) == 8
    assert len(sound.values) == 16
    assert room.detached == [broken]
    with pytest.raises(NotImplementedError):
        RecordBuffer().flush()


def test_attached_is_called_with_the_purgatory() -> None:
    """An observer can read the waiting operations from the purgatory on demand."""

    class Guest(Observer):
        def completed(self, event: Any) -> None:
            """Ignore the event."""

        def attached(self, purgatory: Any) -> None:
            self.purgatory = purgatory

    guest = Guest()
    room = make_purgatory(ManualClock(1_000_000), observers=[guest])
    assert guest.purgatory is room
    room.try_complete_else_watch(Op(timeout=2.0), ["a", "b"])
    room.try_complete_else_watch(Op(timeout=None), ["c"])
    events = room.parked_events()
    assert [(event.op_id, event.keys, event.deadline, event.finished_at) for event in events] == [
        (1, ("a", "b"), 1002.0, None),
        (2, ("c",), None, None),
    ]


def test_an_interrupt_passes_through_and_the_buffer_stays_attached() -> None:
    """A KeyboardInterrupt is not an error of the buffer, which continues to receive rows."""
    buffer = Interrupted()
    room = make_purgatory(ManualClock(), observers=[buffer])
    for rows in (1, 2):
        operation = Op()
        room.try_complete_else_watch(operation, ["a"])
        with pytest.raises(KeyboardInterrupt):
            operation.cancel()
        assert len(buffer.values) == 8 * rows
    assert room.statistics().observers_detached == 0
    room._check()


async def test_the_error_of_a_buffer_is_reported(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """The loop's handler gets the error and the buffer once; by default a buffer flushes at each row."""
    buffer = Broken()
    assert buffer.flush_at == 1
    async with Purgatory[Any]("p", clock=clock, observers=[buffer]) as purgatory:
        for _ in range(2):
            operation = Op()
            purgatory.try_complete_else_watch(operation, ["a"])
            operation.cancel()
    (context,) = reported
    assert isinstance(context["exception"], RuntimeError)
    assert context["observer"] is buffer


def test_append_record_adds_other_rows() -> None:
    """Other rows use the same eight values as the rows of the purgatory."""
    buffer = Pages(2)
    for op_id in (1, 2, 3):
        append_record(buffer, 1, ("by hand", None), Op, op_id, ("a",), 5, 6, 7)
    assert [len(page) for page in buffer.pages] == [16]
    assert buffer.values == [1, ("by hand", None), Op, 3, ("a",), 5, 6, 7]


class _WithBuffer:
    """An observer whose buffer is an attribute, as the journal's is."""

    def __init__(self, buffer: RecordBuffer) -> None:
        self.record_buffer = buffer


def test_an_observer_may_have_its_buffer_as_an_attribute() -> None:
    """The buffer receives the rows; if it raises, the observer is detached and reported."""
    sound, broken = _WithBuffer(Pages(1)), _WithBuffer(Broken())
    observers: list[Any] = [sound, broken]
    room = make_purgatory(ManualClock(), observers=observers)
    for _ in range(2):
        operation = Op()
        room.try_complete_else_watch(operation, ["a"])
        operation.force_complete()
    assert room.statistics().observers_detached == 1
    assert room.detached == [broken]
    assert isinstance(sound.record_buffer, Pages)
    assert len(sound.record_buffer.pages) == 2


async def test_the_kind_of_a_wait_is_in_its_row(clock: VirtualClock) -> None:
    """The ``kind=`` that the caller gave, or else the class, whose name is that of the method."""
    buffer = Pages(100)
    async with Purgatory[Any]("p", clock=clock, observers=[buffer]) as purgatory:
        for kind in ("GET /orders/{id}", None):
            assert await purgatory.wait_until(lambda: True, key="a", timeout=1.0, kind=kind)
    given, default = buffer.values[2::8]
    assert given == "GET /orders/{id}"
    assert default.__name__ == "wait_until"


def test_flush_must_not_be_a_coroutine_function() -> None:
    """It is called, not awaited, as the methods of every observer are."""

    class Buffer(RecordBuffer):
        async def flush(self) -> None:  # type: ignore[override]
            """It would never run."""

    class Owner:
        record_buffer = Buffer()

    for observer in (Buffer(), Owner()):
        with pytest.raises(TypeError, match=r"^Buffer\.flush must be a plain function, got the coroutine function"):
            make_purgatory(ManualClock(), observers=[observer])
