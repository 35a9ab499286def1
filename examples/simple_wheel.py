"""A single-level timing wheel with rounds, for comparison: ``python -m examples.simple_wheel``.

The wheel is a ring of slots, and its hand moves one slot per tick.  If a task is due after more than one revolution, it
waits in its slot with a count of *rounds*, the number of remaining revolutions.  This is scheme 6 of Varghese and
Lauck (1987); Netty and many message brokers use it.

Adding or cancelling a task takes O(1) time.  The wheel has two costs: the hand must move at every tick even if no task
is due, and at every tick it visits tasks that are due in later rounds.  In a ring of 20 slots of 1 ms, it visits a task
180,000 times if the task's delay is one hour.  The hierarchy of wheels, ``purgatory.TimingWheel``, moves the task once
per level.  Run this file to compare the counts.
"""

import argparse
import random
import time
from collections.abc import Callable

from purgatory import SystemTimer, TimerTask
from purgatory.testing import VirtualClock


class SimpleWheel:
    """One ring of ``slots`` slots of ``tick_ms`` each, driven by :meth:`tick`.

    ``visits`` counts the visits to waiting tasks, and ``ticks`` counts the moves of the hand.
    """

    def __init__(self, tick_ms: int = 1, slots: int = 20) -> None:
        if tick_ms < 1 or slots < 2:
            raise ValueError(f"tick_ms must be at least 1 and slots at least 2, got {tick_ms} and {slots}")
        self.tick_ms = tick_ms
        self._slots: list[dict[int, tuple[int, Callable[[], object]]]] = [{} for _ in range(slots)]
        self._where: dict[int, int] = {}  # task -> slot
        self._hand = 0
        self._next_id = 0
        self._state = "running"
        self.visits = 0
        self.ticks = 0

    def add(self, delay_ms: int, callback: Callable[[], object]) -> int:
        """Call ``callback`` after ``delay_ms`` milliseconds, rounded up to a whole number of ticks, at least one.
        Return a number for :meth:`cancel`.

        Raise RuntimeError after :meth:`stop` or :meth:`drain`.
        """
        if self._state != "running":
            raise RuntimeError("the wheel is stopped and accepts no new tasks")
        ticks = max(1, -(-delay_ms // self.tick_ms))
        slot = (self._hand + ticks) % len(self._slots)
        rounds = (ticks - 1) // len(self._slots)
        self._next_id += 1
        self._slots[slot][self._next_id] = (rounds, callback)
        self._where[self._next_id] = slot
        return self._next_id

    def cancel(self, task: int) -> bool:
        """Cancel the task.  Return whether it was still waiting."""
        slot = self._where.pop(task, None)
        if slot is None:
            return False
        del self._slots[slot][task]
        return True

    def tick(self) -> int:
        """Move the hand by one slot and run the tasks that are due.  Return their number."""
        if self._state == "stopped":
            return 0
        self.ticks += 1
        self._hand = (self._hand + 1) % len(self._slots)
        due = []
        slot = self._slots[self._hand]
        for task, (rounds, callback) in slot.items():
            self.visits += 1
            if rounds:
                slot[task] = (rounds - 1, callback)
            else:
                due.append(task)
        ran = 0
        for task in due:
            entry = slot.pop(task, None)  # None: an earlier callback has cancelled it
            if entry is not None:
                del self._where[task]
                entry[1]()
                ran += 1
        if self._state == "draining" and not self._where:
            self._state = "stopped"
        return ran

    def stop(self) -> int:
        """Stop at once.  Drop the waiting tasks and return their number."""
        dropped = len(self._where)
        self._where.clear()
        for slot in self._slots:
            slot.clear()
        self._state = "stopped"
        return dropped

    def drain(self) -> None:
        """Accept no new tasks, and stop when all waiting tasks have run."""
        self._state = "draining" if self._where else "stopped"

    @property
    def stopped(self) -> bool:
        """Whether the hand has stopped."""
        return self._state == "stopped"

    def __len__(self) -> int:
        return len(self._where)


class _Task(TimerTask):
    """A task that does nothing, for the real timer."""


def compare(tasks: int, longest_ms: int, seed: int) -> list[tuple[str, int, int, float]]:
    """Run the same delays through both designs.  Return each design's name, turns, touched tasks, and seconds."""
    rng = random.Random(seed)
    delays = [rng.randrange(1, longest_ms) for _ in range(tasks)]

    simple = SimpleWheel()
    started = time.perf_counter()
    for delay_ms in delays:
        simple.add(delay_ms, lambda: None)
    simple.drain()
    while not simple.stopped:
        simple.tick()
    rows = [("one ring with rounds", simple.ticks, simple.visits, time.perf_counter() - started)]

    timer = SystemTimer(clock=VirtualClock())
    started = time.perf_counter()
    for delay_ms in delays:
        timer.add(_Task(delay_ms))
    turns = ran = 0
    while (due_ms := timer.next_expiration_ms) is not None:
        ran += timer.expire_due(due_ms)
        turns += 1
    rows.append(("hierarchy of wheels", turns, ran + timer.cascades, time.perf_counter() - started))
    return rows


def main() -> None:
    """Print the comparison for several ranges of delays."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.simple_wheel",
        description="Compare a ring that counts rounds with the hierarchy of wheels.",
    )
    parser.add_argument("--tasks", type=int, default=1_000, help="number of tasks (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random delays (default: %(default)s)")
    options = parser.parse_args()
    print(f"{options.tasks} tasks, a tick of 1 ms, 20 slots\n")
    print(f"{'delays up to':>14}  {'design':<22} {'turns':>9} {'touched':>12} {'seconds':>9}")
    for longest_ms, name in ((20, "20 ms"), (1_000, "1 s"), (60_000, "1 min"), (600_000, "10 min")):
        for design, turns, touched, seconds in compare(options.tasks, longest_ms, options.seed):
            print(f"{name:>14}  {design:<22} {turns:>9,} {touched:>12,} {seconds:>9.3f}")


if __name__ == "__main__":
    main()
