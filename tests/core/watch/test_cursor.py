"""An iteration over the operations on one key, which may pause, and which finds those that a value reaches."""

from purgatory import Outcome
from tests.helpers import Op, completed, park
from tests.sansio import QuietPurgatory


def test_a_pending_iteration_survives_the_end_of_the_operation_alone_on_the_key(room: QuietPurgatory) -> None:
    """A cursor that was made before the operation ended returns nothing."""
    operation = park(room, "a")
    cursor = room._core.cursor("a", None)
    assert cursor is not None
    operation.cancel()
    assert cursor.next() is None


def test_more_thresholds_than_are_looked_up_in_the_heap(room: QuietPurgatory) -> None:
    """If most thresholds are reached, the check skips the others."""
    operations = [Op(name=str(number)) for number in range(500)]
    for number, operation in enumerate(operations):
        room.try_complete_else_watch(operation, {"key": 10 if number % 10 == 0 else 1})
        operation.calls.clear()
    operations[10].ready = operations[251].ready = operations[252].ready = True
    assert room.check_and_complete("key", 5, limit=1) == 1
    assert completed(operations) == [251]
    assert [number for number, operation in enumerate(operations) if operation.calls] == [
        number for number in range(252) if number % 10
    ]
    room._check()


def test_a_reached_threshold_behind_an_operation_that_has_ended_is_tried(room: QuietPurgatory) -> None:
    """An operation that a callback ends during the check is skipped, and the one behind it is not."""
    operations = [Op(10, name=str(number)) for number in range(4)]
    for operation in operations:
        room.try_complete_else_watch(operation, {"key": 1})
        operation.ready = True
    operations[0]._on_complete = lambda _: operations[1].cancel()
    assert room.check_and_complete("key", 1, limit=2) == 2
    assert completed(operations) == [0, 2]
    assert operations[1].outcome is Outcome.CANCELLED
    room._check()
