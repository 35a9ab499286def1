"""``keys``: each watched key once, whatever the caller does meanwhile."""

import weakref
from collections.abc import Iterator

from tests.helpers import park
from tests.sansio import QuietPurgatory


def test_keys_come_and_go_during_the_iteration(room: QuietPurgatory) -> None:
    """Keys that are watched during the whole iteration are returned exactly once, and others at most once."""
    stay = [park(room, ("stay", number)) for number in range(1000)]
    go = [park(room, ("go", number)) for number in range(1000)]
    found = []
    for number, key in enumerate(room.keys()):
        found.append(key)
        if number < 500:
            go[number].cancel()
            park(room, ("new", number))
    assert len(set(found)) == len(found)
    assert {("stay", number) for number in range(1000)} <= set(found)
    assert {kind for kind, _ in set(found)} <= {"stay", "go", "new"}  # type: ignore[misc]
    assert all(operation.keys for operation in stay)


def test_keys_can_be_completed_during_the_iteration(room: QuietPurgatory) -> None:
    """The iteration allows its caller to complete the operations on each key it returns."""
    waiting = [park(room, number) for number in range(1000)]
    for operation in waiting:
        operation.ready = True
    assert sum(room.check_and_complete(key) for key in room.keys()) == 1000  # noqa: SIM118
    room._check()
    assert len(room) == 0


def test_an_iteration_that_is_left_keeps_no_operation_alive(room: QuietPurgatory, no_gc: None) -> None:
    """An abandoned iteration holds only the keys of one shard, and no watchers."""
    operation = park(room, "a")
    alive = weakref.ref(operation)
    keys: Iterator[object] = room.keys()
    assert next(keys) == "a"
    operation.cancel()
    del operation
    assert alive() is None
    assert list(keys) == []
