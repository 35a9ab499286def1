"""The hierarchical timing wheel and the delay queue of its buckets.  Floor 2.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987), scheme 7, in the form that Apache Kafka
gave it (``TimingWheel``): the clock does not tick, it jumps to the next bucket that holds anything.

A wheel of ``wheel_size`` buckets, each standing for ``tick_ms``, covers ``interval_ms = tick_ms * wheel_size`` from its
current time on.  What lies further ahead goes to the overflow wheel, whose tick is the interval of the wheel below, and
which is made when it is first needed.  With ``tick_ms=1, wheel_size=20``:

======  =========  =========  ==================================
level     tick      interval   at time 0 it holds delays of
======  =========  =========  ==================================
1           1 ms      20 ms    1 ms ..      19 ms
2          20 ms     400 ms    20 ms ..    399 ms
3         400 ms        8 s    400 ms ..  7.999 s
4            8 s      160 s    8 s ..   159.999 s
5          160 s    3 200 s    160 s .. 3 199.999 s
6        3 200 s   64 000 s    and so on, without end
======  =========  =========  ==================================

An example.  A task that is due at 450 is added at time 0.  450 is beyond the 20 ms of level 1 and the 400 ms of level
2, so it goes to level 3, into the bucket that stands for 400 .. 799 and is due at 400:

====  ===========================  ==================================================================
time  what falls due               where the task is then
====  ===========================  ==================================================================
0                                  level 3, bucket 400 .. 799
400   bucket 400 of level 3        50 ms are left: level 2, bucket 440 .. 459 (first cascade)
440   bucket 440 of level 2        10 ms are left: level 1, bucket 450 (second cascade)
450   bucket 450 of level 1        it runs
====  ===========================  ==================================================================

Three turns of the clock instead of 450.  Putting a task in is a walk up the levels, five of them for an hour;
taking it out is unlinking it.  Neither depends on how many tasks there are.

The same slot serves the next round: bucket 0 of level 1 stands for 0, then for 20, then for 40.  That is sound because
the wheel's time never passes a queued bucket, so no two rounds can meet in a slot.

**Order.**  Tasks fire in the order of their deadlines, and those of equal deadlines in the order in which they were
added, which Kafka does not promise.  Whoever stands in a coarse bucket was added before anyone who stands in a finer
bucket with the same deadline: at that time the deadline was further ahead.  So a cascade takes the coarse bucket from
its end and puts each task at the *front* of its finer bucket.  When buckets of several levels fall due together, the
coarsest therefore has to be cascaded last, for its tasks belong in front of all others; and the one of level 1, whose
tasks run, comes after them all.
"""

import heapq
from typing import Any, Final

from mypy_extensions import i64

from .task import NOT_QUEUED, TaskCounter, TimerTask, TimerTaskList

__all__ = ["DelayQueue", "TimingWheel"]


_RUNS_LAST: Final = 1 << 30  # behind every level


class DelayQueue:
    """A heap of the buckets that hold anything, by expiration; of equals the coarser later, and level 1 at the end.

    It has one entry per queued bucket, however many tasks the bucket holds, so it stays as small as the wheels: a push
    happens when a bucket is first filled in its round, not when a task is added.
    """

    __slots__ = ("_heap", "operations")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimingWheel]] = []
        self.operations: int = 0  # pushes and pops so far: what a wheel is there to save

    def push(self, expiration_ms: i64, wheel: "TimingWheel") -> None:
        rank = _RUNS_LAST if wheel.level == 1 else wheel.level
        heapq.heappush(self._heap, (expiration_ms, rank, wheel))
        self.operations += 1

    def peek_ms(self) -> int | None:
        """The expiration of the earliest bucket that is not empty; emptied ones before it are dropped."""
        heap = self._heap
        while heap:
            expiration_ms, _, wheel = heap[0]
            if not wheel.bucket_at(expiration_ms).is_empty:
                return expiration_ms
            self._drop(expiration_ms, wheel)
        return None

    def next_ms(self) -> int | None:
        """The expiration of the earliest queued bucket, empty or not."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: i64) -> tuple[int, "TimingWheel"] | None:
        """Take out the earliest bucket that is not empty, if its time has come; the caller owns its tasks then."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            expiration_ms, _, wheel = heap[0]
            if not wheel.bucket_at(expiration_ms).is_empty:
                heapq.heappop(heap)
                self.operations += 1
                return expiration_ms, wheel
            self._drop(expiration_ms, wheel)
        return None

    def clear(self) -> None:
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def _drop(self, expiration_ms: i64, wheel: "TimingWheel") -> None:
        heapq.heappop(self._heap)
        self.operations += 1
        wheel.bucket_at(expiration_ms).expiration_ms = NOT_QUEUED


class TimingWheel:
    """One level, and through ``overflow_wheel`` all levels above it.

    ``tick_ms``, ``wheel_size``: at least 1 and 2, else ValueError (one bucket cannot tell now from later).
    ``start_ms``: the time to begin at, rounded down to a tick.  ``current_time_ms`` is a multiple of the tick, and
    never later than an expiration that is still queued.
    """

    __slots__ = (
        "_buckets",
        "_counter",
        "_horizon_ms",
        "_queue",
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
        _check_whole("tick_ms", tick_ms, 1, "at least 1")
        _check_whole("wheel_size", wheel_size, 2, "at least 2: one bucket cannot tell now from later")
        self.tick_ms: i64 = tick_ms
        self.wheel_size: i64 = wheel_size
        self.interval_ms: i64 = tick_ms * wheel_size
        self.current_time_ms: i64 = start_ms - start_ms % tick_ms
        self.overflow_wheel: TimingWheel | None = None
        self.level: i64 = level
        self._horizon_ms: i64 = self.current_time_ms + self.interval_ms
        self._queue: DelayQueue = DelayQueue() if queue is None else queue
        self._counter: TaskCounter = TaskCounter() if counter is None else counter
        self._buckets: list[TimerTaskList] = [TimerTaskList(self._counter) for _ in range(wheel_size)]

    def add(self, task: TimerTask, expiration_ms: i64) -> bool:
        """Put the task, which is in no bucket, into the one for its expiration.

        False, and nothing happens, if that lies within the current tick or before: the caller fires it.
        """
        if expiration_ms < self.current_time_ms + self.tick_ms:
            return False
        task._expiration_ms = expiration_ms
        self.bucket_for(expiration_ms).add(task)
        return True

    def bucket_for(self, expiration_ms: i64) -> TimerTaskList:
        """The bucket, on whichever level, where a task with this expiration belongs now; it is queued from here on."""
        wheel = self
        while expiration_ms >= wheel._horizon_ms:
            above = wheel.overflow_wheel
            wheel = wheel._grow() if above is None else above
        tick_ms = wheel.tick_ms
        bucket = wheel._buckets[expiration_ms // tick_ms % wheel.wheel_size]
        start_ms = expiration_ms - expiration_ms % tick_ms
        if bucket.expiration_ms != start_ms:
            wheel._queue.push(start_ms, wheel)
            bucket.expiration_ms = start_ms
        return bucket

    def place(self, task: TimerTask, expiration_ms: i64) -> i64:
        """Put the task, which is in no bucket, where it belongs now; return when that bucket falls due.

        The same as ``bucket_for(expiration_ms).add(task)`` without the calls: every deadline goes through here.
        """
        wheel = self
        while expiration_ms >= wheel._horizon_ms:
            above = wheel.overflow_wheel
            wheel = wheel._grow() if above is None else above
        tick_ms = wheel.tick_ms
        bucket = wheel._buckets[expiration_ms // tick_ms % wheel.wheel_size]
        start_ms = expiration_ms - expiration_ms % tick_ms
        if bucket.expiration_ms != start_ms:
            wheel._queue.push(start_ms, wheel)
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
        """The bucket of this level whose slot serves the expiration."""
        return self._buckets[expiration_ms // self.tick_ms % self.wheel_size]

    def take(self, expiration_ms: i64, replacement: TimerTaskList) -> TimerTaskList:
        """Exchange the bucket whole, in O(1), for an empty one; the caller then owns its tasks.

        Only the caller can add to what was taken, so running the tasks cannot disturb it but by taking tasks out.
        """
        slot = expiration_ms // self.tick_ms % self.wheel_size
        bucket = self._buckets[slot]
        bucket.expiration_ms = NOT_QUEUED
        self._buckets[slot] = replacement
        return bucket

    def advance(self, time_ms: i64) -> None:
        """Move the current time of this level and those above forward to the tick that holds ``time_ms``."""
        wheel: TimingWheel | None = self
        while wheel is not None and time_ms >= wheel.current_time_ms + wheel.tick_ms:
            wheel.current_time_ms = time_ms - time_ms % wheel.tick_ms
            wheel._horizon_ms = wheel.current_time_ms + wheel.interval_ms
            wheel = wheel.overflow_wheel

    def levels(self) -> list["TimingWheel"]:
        """This wheel and all above it."""
        wheels = []
        wheel: TimingWheel | None = self
        while wheel is not None:
            wheels.append(wheel)
            wheel = wheel.overflow_wheel
        return wheels

    def occupancy(self) -> list[tuple[int, int]]:
        """For people and pictures: of each bucket that holds anything its expiration and number of tasks.  O(tasks)."""
        return sorted((b.expiration_ms, sum(1 for _ in b)) for b in self._buckets if not b.is_empty)

    def __repr__(self) -> str:
        return (
            f"<TimingWheel level={self.level} tick_ms={self.tick_ms} wheel_size={self.wheel_size}"
            f" interval_ms={self.interval_ms} current_time_ms={self.current_time_ms}>"
        )

    def _grow(self) -> "TimingWheel":
        above = TimingWheel(
            self.interval_ms, self.wheel_size, self.current_time_ms, self._queue, self._counter, self.level + 1
        )
        self.overflow_wheel = above
        return above

    def _check(self) -> int:
        """Assert the invariants of all levels; return the number of tasks."""
        queued = {(wheel.level, expiration_ms) for expiration_ms, _, wheel in self._queue._heap}
        assert len(queued) == len(self._queue), "a bucket is queued twice"
        total = 0
        for wheel in self.levels():
            now_ms, tick_ms = wheel.current_time_ms, wheel.tick_ms
            assert now_ms % tick_ms == 0, f"{wheel!r}: its time is not a multiple of its tick"
            assert wheel._horizon_ms == now_ms + wheel.interval_ms
            for slot, bucket in enumerate(wheel._buckets):
                total += bucket._check()
                start_ms = bucket.expiration_ms
                if start_ms == NOT_QUEUED:
                    assert bucket.is_empty, f"{bucket!r} holds tasks and is not queued"
                    continue
                assert (wheel.level, start_ms) in queued, f"{bucket!r} says it is queued and is not"
                assert start_ms // tick_ms % wheel.wheel_size == slot, f"{bucket!r} is in the wrong slot"
                assert now_ms <= start_ms < wheel._horizon_ms, f"{bucket!r} is out of range at {now_ms}"
        return total


def _check_whole(name: str, value: Any, least: int, meant: str) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} is a whole number (int), not {value!r}")
    if value < least:
        raise ValueError(f"{name} is {meant}, not {value}")
