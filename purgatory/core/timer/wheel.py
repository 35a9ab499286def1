"""The hierarchical timing wheel.

This is scheme 7 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), in the form of Apache
Kafka's ``TimingWheel``: the clock does not tick but jumps to the next bucket that contains a task.

A wheel of ``wheel_size`` buckets, each covering ``tick_ms``, covers ``interval_ms = tick_ms * wheel_size`` from its
current time on.  A task whose deadline is further ahead is put on the overflow wheel, whose tick is the interval of the
wheel below and which is created on demand.  With ``tick_ms=1, wheel_size=20``:

======  =========  =========  ==================================
level     tick      interval   at time 0 it holds delays of
======  =========  =========  ==================================
1           1 ms      20 ms    1 ms ..      19 ms
2          20 ms     400 ms    20 ms ..    399 ms
3         400 ms        8 s    400 ms ..  7.999 s
4            8 s      160 s    8 s ..   159.999 s
5          160 s    3,200 s    160 s .. 3,199.999 s
6        3,200 s   64,000 s    and so on, without end
======  =========  =========  ==================================

For example, a task with the deadline 450 is added at time 0.  The deadline is beyond the 20 ms of level 1 and the 400
ms of level 2, so the task is put on level 3, into the bucket that covers 400 .. 799 and falls due at 400:

====  ===========================  ==================================================================
time  what falls due               where the task is then
====  ===========================  ==================================================================
0                                  level 3, bucket 400 .. 799
400   bucket 400 of level 3        50 ms are left: level 2, bucket 440 .. 459 (first cascade)
440   bucket 440 of level 2        10 ms are left: level 1, bucket 450 (second cascade)
450   bucket 450 of level 1        it runs
====  ===========================  ==================================================================

The timer wakes three times instead of 450.  Adding a task walks up the levels (five for a delay of one hour);
cancelling a task unlinks it.  Neither cost depends on the number of tasks.

A slot is reused in later rounds: bucket 0 of level 1 covers 0, then 40, then 80.  This is sound because the wheel's
time never passes a queued bucket, so two rounds never share a slot.  Each level has two rounds of slots; the next
section explains the purpose of the second one.

**Early cascades.**  If a coarse bucket is cascaded only when it falls due, its first tasks are delayed until all its
tasks have been moved.  With 50,000 deadlines per second, a bucket that covers 8 s contains 400,000 tasks.  A timer with
many tasks therefore begins to empty a bucket half a tick before it falls due (:meth:`TimingWheel.cascade_early`).  The
finer wheel must then have room for all of these tasks.  The next bucket of a level lies within the next two intervals
of the level below, so each level has two rounds of slots.  When an early cascade begins, the horizon of the finer level
moves to the end of the coarse bucket.  From then on, new tasks for that span go to the finer levels, and no task is
added to the coarse bucket.

**Order.**  Tasks fire in the order of their deadlines.  Tasks with equal deadlines fire in the order in which they were
added; Kafka does not guarantee that order.  A task in a coarse bucket was added before every task with the same
deadline in a finer bucket, because the deadline was further ahead at that time.  A cascade therefore takes tasks from
the end of the coarse bucket and puts each of them at the *front* of its finer bucket.  When buckets on several levels
fall due together, those above level 1 are cascaded from the finest to the coarsest, because the tasks of a coarser
bucket go in front of all others.  The bucket of level 1 comes last, and its tasks then run.  An early cascade empties
the finest level first and moves tasks down by only one level: a task that skipped a level would overtake newer tasks
there, which would later be moved down in front of it.
"""

from typing import Any, Final

from mypy_extensions import i64

from purgatory.texts import safe_repr

from .delay_queue import DelayQueue
from .task import FAR_MS, NOT_QUEUED, TimerTask
from .task_list import TaskCounter, TimerTaskList

__all__ = ["TimingWheel"]

_MOST_BUCKETS: Final = 65_536  # on one level; more buckets would cost memory and save nothing
_LONGEST_TICK_MS: Final = 10**15
_FURTHEST_MS: Final = 4 * 10**18  # later than every deadline, and small enough that sums fit one machine word


class TimingWheel:
    """One level and, through ``overflow_wheel``, all levels above it.

    ``tick_ms``: from 1 to ``10**15``.  ``wheel_size``: from 2 to 65,536; a single bucket could not distinguish now from
    later.  Raises ValueError outside these ranges, and TypeError unless both are ints.  ``interval_ms`` is the product
    of the two, at most ``4 * 10**18``: the coarsest level covers every deadline and may have buckets that are never
    used.  ``start_ms``: the initial time, rounded down to a tick.  ``current_time_ms`` is a multiple of the tick and is
    never later than a queued expiration.
    """

    __slots__ = (
        "_buckets",
        "_counter",
        "_horizon_ms",
        "_queue",
        "_slots",
        "current_time_ms",
        "interval_ms",
        "level",
        "overflow_wheel",
        "tick_ms",
        "wheel_size",
    )

    def __init__(
        self,
        tick_ms: Any = 1,
        wheel_size: Any = 20,
        start_ms: int = 0,
        queue: DelayQueue | None = None,
        counter: TaskCounter | None = None,
        level: int = 1,
    ) -> None:
        _validate_int("tick_ms", tick_ms, 1, "", _LONGEST_TICK_MS if level == 1 else _FURTHEST_MS)
        _validate_int(
            "wheel_size", wheel_size, 2, " (a single bucket cannot distinguish now from later)", _MOST_BUCKETS
        )
        self.tick_ms: i64 = tick_ms
        self.wheel_size: i64 = wheel_size
        self.interval_ms: i64 = min(tick_ms * wheel_size, _FURTHEST_MS)
        self.current_time_ms: i64 = start_ms - start_ms % tick_ms
        self.overflow_wheel: TimingWheel | None = None
        self.level: i64 = level
        self._horizon_ms: i64 = self.current_time_ms + self.interval_ms  # later tasks go to the overflow wheel
        self._queue: DelayQueue = DelayQueue() if queue is None else queue
        self._counter: TaskCounter = TaskCounter() if counter is None else counter
        self._slots: i64 = 2 * wheel_size  # one round for the current interval, and one for early cascades
        self._buckets: list[TimerTaskList] = [TimerTaskList(self._counter) for _ in range(self._slots)]

    def add(self, task: TimerTask, expiration_ms: i64) -> bool:
        """Put the task, which is in no bucket, into the bucket for its expiration.

        If the expiration is in the current tick or earlier, change nothing and return False; the caller runs the task.
        """
        if expiration_ms < self.current_time_ms + self.tick_ms:
            return False
        task._expiration_ms = expiration_ms
        self.bucket_for(expiration_ms).add(task)
        return True

    def bucket_for(self, expiration_ms: i64) -> TimerTaskList:
        """Return the bucket, on any level, for a task with this expiration; queue it if it is not queued yet."""
        wheel = self
        while expiration_ms >= wheel._horizon_ms:
            above = wheel.overflow_wheel
            wheel = wheel._grow() if above is None else above
        tick = expiration_ms // wheel.tick_ms
        bucket = wheel._buckets[tick % wheel._slots]
        start_ms = tick * wheel.tick_ms
        if bucket.expiration_ms != start_ms:
            wheel._queue.push(start_ms, wheel, bucket)
            bucket.expiration_ms = start_ms
        return bucket

    def place(self, task: TimerTask, expiration_ms: i64) -> i64:
        """Put the task, which is in no bucket, into the bucket for its expiration; return when that bucket falls due.

        This is ``bucket_for(expiration_ms).add(task)`` without the calls, because this method runs for every deadline.
        """
        wheel = self
        while expiration_ms >= wheel._horizon_ms:
            above = wheel.overflow_wheel
            wheel = wheel._grow() if above is None else above
        tick = expiration_ms // wheel.tick_ms
        bucket = wheel._buckets[tick % wheel._slots]
        start_ms = tick * wheel.tick_ms
        if bucket.expiration_ms != start_ms:
            wheel._queue.push(start_ms, wheel, bucket)
            bucket.expiration_ms = start_ms
        root = bucket._root
        tail = root._prev
        assert tail is not None
        task._list = bucket
        task._prev = tail
        task._next = root
        tail._next = task
        root._prev = task
        wheel._counter.value += 1
        return start_ms

    def bucket_at(self, expiration_ms: i64) -> TimerTaskList:
        """Return the bucket on this level whose slot covers the expiration."""
        return self._buckets[expiration_ms // self.tick_ms % self._slots]

    def take(self, expiration_ms: i64, replacement: TimerTaskList) -> TimerTaskList:
        """Replace the bucket with an empty one, in O(1), and return it; the caller then owns its tasks.

        Nothing is added to a taken bucket, so running tasks can only remove tasks from it.
        """
        slot = expiration_ms // self.tick_ms % self._slots
        bucket = self._buckets[slot]
        bucket.expiration_ms = NOT_QUEUED
        self._buckets[slot] = replacement
        return bucket

    def cascade(self, coarse: TimerTaskList, due_ms: i64, limit: i64) -> i64:
        """Move tasks from the end of a coarse bucket, which falls due at ``due_ms``, to the fronts of the finer
        buckets.

        Called on the finest wheel to which a task may be moved.  Move at most ``limit`` tasks; return the number of
        moved tasks.  The links are changed here directly, without calls and without counting twice, because a coarse
        bucket may contain all tasks on the timer.
        """
        root = coarse._root
        moved: i64 = 0
        while moved < limit and (task := root._prev) is not root:
            assert task is not None
            bucket = self.bucket_for(task._expiration_ms)
            if task._expiration_ms > due_ms:  # a task that is due is not counted, because Kafka would run it at once
                self._counter.cascades += 1
            before = task._prev
            front = bucket._root
            head = front._next
            assert before is not None and head is not None
            before._next = root
            root._prev = before
            task._list = bucket
            task._prev = front
            task._next = head
            head._prev = task
            front._next = task
            moved += 1
        return moved

    def early_ms(self, first_ms: i64) -> i64:
        """Return the time from which tasks of this overflow wheel's next bucket can be moved early, or FAR_MS if that
        bucket is empty.

        ``first_ms``: the time at which the earliest bucket of all levels falls due.
        """
        due_ms = first_ms + -first_ms % self.tick_ms
        bucket = self.bucket_at(due_ms)
        if bucket.expiration_ms != due_ms or bucket.is_empty:
            return FAR_MS
        return due_ms - self.tick_ms // 2

    def cascade_early(self, first_ms: i64, now_ms: i64, limit: i64) -> i64:
        """Move at most ``limit`` tasks out of coarse buckets that fall due within half a tick; return how many were
        moved.

        Called on the finest wheel when no bucket is due and the wheel's time is ``now_ms``.  ``first_ms``: the same as
        for :meth:`early_ms`.
        """
        moved: i64 = 0
        finer = self
        while moved < limit:
            coarse = finer.overflow_wheel
            if coarse is None:
                break
            if coarse.early_ms(first_ms) <= now_ms:
                due_ms = first_ms + -first_ms % coarse.tick_ms
                finer._horizon_ms = due_ms + coarse.tick_ms
                moved += finer.cascade(coarse.bucket_at(due_ms), due_ms, limit - moved)
            finer = coarse
        return moved

    def advance(self, time_ms: i64) -> None:
        """Move the current time of this level and all levels above it forward to the tick that contains ``time_ms``."""
        wheel: TimingWheel | None = self
        while wheel is not None and time_ms >= wheel.current_time_ms + wheel.tick_ms:
            wheel.current_time_ms = time_ms - time_ms % wheel.tick_ms
            horizon_ms = wheel.current_time_ms + wheel.interval_ms
            if horizon_ms > wheel._horizon_ms:  # an early cascade may have moved it further
                wheel._horizon_ms = horizon_ms
            wheel = wheel.overflow_wheel

    def levels(self) -> list["TimingWheel"]:
        """Return this wheel and all wheels above it."""
        wheels = []
        wheel: TimingWheel | None = self
        while wheel is not None:
            wheels.append(wheel)
            wheel = wheel.overflow_wheel
        return wheels

    def occupancy(self) -> list[tuple[int, int]]:
        """Return (expiration, number of tasks) for each nonempty bucket, for displays.  Cost: O(tasks)."""
        return sorted((b.expiration_ms, sum(1 for _ in b)) for b in self._buckets if not b.is_empty)

    def __repr__(self) -> str:
        return (
            f"<TimingWheel level={self.level} tick_ms={self.tick_ms} wheel_size={self.wheel_size}"
            f" interval_ms={self.interval_ms} current_time_ms={self.current_time_ms}>"
        )

    def _grow(self) -> "TimingWheel":
        assert self.interval_ms < _FURTHEST_MS, "a deadline lies beyond the longest timeout"
        above = TimingWheel(
            self.interval_ms, self.wheel_size, self.current_time_ms, self._queue, self._counter, self.level + 1
        )
        self.overflow_wheel = above
        return above

    def _check(self) -> int:
        """Assert the invariants of all levels; return the number of tasks."""
        queued = {(wheel.level, expiration_ms) for expiration_ms, _, wheel, _ in self._queue._heap}
        assert len(queued) == len(self._queue), "a bucket is queued twice"
        total = 0
        for wheel in self.levels():
            now_ms, tick_ms = wheel.current_time_ms, wheel.tick_ms
            assert now_ms % tick_ms == 0, f"{wheel!r}: its time is not a multiple of its tick"
            above = wheel.overflow_wheel
            furthest_ms = now_ms if above is None else above.current_time_ms + 2 * above.tick_ms
            assert now_ms + wheel.interval_ms <= wheel._horizon_ms <= max(now_ms + wheel.interval_ms, furthest_ms)
            for slot, bucket in enumerate(wheel._buckets):
                start_ms = bucket.expiration_ms
                if start_ms == NOT_QUEUED:  # as most of them are, so without a call
                    root = bucket._root
                    assert root._next is root is root._prev, f"{bucket!r} holds tasks and is not queued"
                    continue
                total += bucket._check()
                assert (wheel.level, start_ms) in queued, f"{bucket!r} is marked as queued and is not"
                assert start_ms // tick_ms % wheel._slots == slot, f"{bucket!r} is in the wrong slot"
                assert now_ms <= start_ms < wheel._horizon_ms, f"{bucket!r} is out of range at {now_ms}"
        return total


def _validate_int(name: str, value: Any, least: int, why: str, most: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, got {safe_repr(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}{why}, got {safe_repr(value)}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {safe_repr(value)}")
