"""External faults: stopped clocks and processes, hooks and keys that raise, closed loops, many threads."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check

ROOT = Path(__file__).parent.parent.parent


async def test_a_clock_that_stood_still_for_five_seconds(clock: VirtualClock) -> None:
    """All overdue operations expire in deadline order, in slices; none is early, and none is lost."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        source = random.Random(3)
        expired: list[int] = []
        ops = [Op(source.randrange(1, 7000) / 1000) for _ in range(3000)]
        for op in ops:
            op._on_expiration = lambda op: expired.append(op.delay_ms)
            purgatory.try_complete_else_watch(op, ["a"])
        await clock.settle()
        clock._now_ns += 5_000_000_000  # without any wake-up
        await clock.advance(0)
        assert expired == sorted(op.delay_ms for op in ops if op.delay_ms <= 5000)
        purgatory._check()
        await clock.advance(2)
        assert expired == sorted(op.delay_ms for op in ops)
        assert purgatory.statistics().lateness.max == pytest.approx(5.0, abs=0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_process_that_is_stopped_and_continued() -> None:
    """After SIGSTOP and SIGCONT, all due operations expire late, but never early, and once."""
    code = textwrap.dedent(
        """
        import asyncio, sys
        from purgatory import Purgatory, DelayedOperation
        class Op(DelayedOperation[None]):
            def try_complete(self): return False
        async def main():
            async with Purgatory("stopped") as purgatory:
                ops = [Op(0.2 + number / 1000) for number in range(300)]
                for op in ops:
                    purgatory.try_complete_else_watch(op, ["a"])
                print("parked", flush=True)
                for op in ops:
                    await op
                statistics = purgatory.statistics()
                purgatory._check()
                print(statistics.expired, statistics.lateness.count, len(purgatory))
        asyncio.run(main())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "parked\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=30)
    assert output == "300 300 0\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    "error", [MemoryError, RecursionError, ZeroDivisionError, asyncio.CancelledError, StopIteration]
)
@pytest.mark.parametrize("hook", ["on_try", "on_complete", "on_expiration"])
@pytest.mark.parametrize("ending", ["hand over", "check", "expiry", "close"])
async def test_a_hook_that_raises_any_exception(
    clock: VirtualClock, reported: list[dict[str, Any]], error: type[BaseException], hook: str, ending: str
) -> None:
    """The operation has one outcome, the other operation is answered, and the counters balance."""

    def fail(_: Op) -> None:
        raise error

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, neighbour = Op(5), Op(5)
        if ending == "hand over":
            setattr(op, f"_{hook}", fail)
            op.ready = True
            try:
                purgatory.try_complete_else_watch(op, ["a"])
            except error:
                assert op.outcome is Outcome.FAILED
        else:
            purgatory.try_complete_else_watch(op, ["a"])
            setattr(op, f"_{hook}", fail)
        purgatory.try_complete_else_watch(neighbour, ["a"])
        op.ready = neighbour.ready = True
        if ending == "check":
            assert purgatory.check_and_complete("a") == (2 if hook == "on_expiration" else 1)
        elif ending == "expiry":
            await clock.advance(5)
        elif ending == "close":
            await purgatory.aclose()
        else:
            purgatory.check_and_complete("a")
        assert op.outcome is not Outcome.PENDING
        assert op.completions <= 1
        assert neighbour.is_completed
        check(purgatory, parked=0, watched=0, num_delayed=0)


class Key:
    """A key whose hash or comparison raises after a given number of calls once it is armed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.left = -1

    def _count(self) -> None:
        if self.left == 0:
            self.left = -1
            raise Boom
        self.left -= 1

    def __hash__(self) -> int:
        self._count()
        return 7  # all in one slot, so that they are compared

    def __eq__(self, other: object) -> bool:
        self._count()
        return self is other


@pytest.mark.parametrize("ending", ["park", "check", "cancel", "force", "expiry", "cancel_for_key", "close"])
@pytest.mark.parametrize("left", range(8))
@pytest.mark.parametrize("shape", ["lone", "two", "shared", "ranked"])
async def test_a_key_whose_hash_or_comparison_raises_once(
    clock: VirtualClock, reported: list[dict[str, Any]], ending: str, left: int, shape: str
) -> None:
    """For any call that raises, the error is reported or raised, the operation still ends, and no other is affected."""
    purgatory = Purgatory[Op]("test", clock=clock)
    keys = [Key(number) for number in range(3)]
    other = Op(None)
    purgatory.try_complete_else_watch(other, ["other", keys[0]])
    op = Op(5)
    wanted: Any = {"lone": [keys[1]], "ranked": {keys[1]: 3, keys[2]: 4}}.get(shape, [keys[1], keys[2]])
    if shape == "shared":
        purgatory.try_complete_else_watch(neighbour := Op(None), [keys[1]])
        assert neighbour.keys
    if ending == "park":
        keys[1].left = left
        try:
            purgatory.try_complete_else_watch(op, wanted)
        except Boom:
            assert op.outcome is Outcome.PENDING
            assert not op.keys
        keys[1].left = -1
        purgatory._check()
    else:
        purgatory.try_complete_else_watch(op, wanted)
        op.ready = True
        keys[1].left = left
        try:
            if ending == "check":
                purgatory.check_and_complete(keys[1])
            elif ending == "cancel":
                op.cancel()
            elif ending == "force":
                op.force_complete()
            elif ending == "expiry":
                await clock.advance(5)
            elif ending == "cancel_for_key":
                purgatory.cancel_for_key(keys[1])
            else:
                await purgatory.aclose()
        except Boom:
            pass
        keys[1].left = -1
        if op.outcome is not Outcome.PENDING:
            assert not op.scheduled
            assert not op.keys
    other.ready = True
    if ending != "close":
        assert purgatory.check_and_complete("other") == 1
        op.cancel()
        op.cancel()
    assert other.outcome is not Outcome.PENDING
    assert op.outcome is not Outcome.PENDING
    await purgatory.aclose()
    assert len(purgatory) == 0
    purgatory._core.counters._check()


def test_a_loop_that_is_closed_underneath() -> None:
    """Operations whose loop is closed can be ended from outside; each has an outcome, and the counters balance."""
    loop = asyncio.new_event_loop()
    purgatory = Purgatory[Op]("test")
    ops = [Op(5) for _ in range(4)]
    loop.set_exception_handler(lambda *_: None)

    async def begin() -> "list[asyncio.Task[Any]]":
        await purgatory.__aenter__()
        tasks = [asyncio.create_task(purgatory.park(op, ["a"])) for op in ops]
        await asyncio.sleep(0)
        return tasks

    tasks = loop.run_until_complete(begin())
    loop.close()
    assert len(purgatory) == 4
    ops[0].ready = True
    assert purgatory.check_and_complete("a") == 1
    assert ops[1].cancel()
    ops[2].run()
    assert purgatory.fail_for_key("a", Boom()) == 1
    check(purgatory, parked=0, completed=1, cancelled=1, expired=1, failed=1)
    with pytest.raises(RuntimeError):
        purgatory.check_soon("a")
    with pytest.raises(RuntimeError):
        purgatory.check_threadsafe("a")
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()
    assert purgatory.timer._reaper.task is not None
    purgatory.timer._reaper.task._log_destroy_pending = False  # type: ignore[attr-defined]
    purgatory.timer._reaper.task.get_coro().close()


async def test_it_is_closed_in_another_loop() -> None:
    """A purgatory that outlived its loop can be closed in the next one, and every operation has an outcome."""
    purgatory = Purgatory[Op]("test")
    op = Op(5)

    async def begin() -> None:
        purgatory.try_complete_else_watch(op, ["a"])
        await asyncio.sleep(0)

    await asyncio.to_thread(lambda: asyncio.run(begin()))
    assert not purgatory.timer.running
    await purgatory.aclose()
    assert op.outcome is Outcome.EXPIRED
    check(purgatory, parked=0, expired_by_closing=1)


async def test_eight_threads_hammer_a_busy_loop() -> None:
    """A check sees every change that a thread announces, while the loop parks and completes operations."""
    count, threads = 60, 8
    async with Purgatory[Op]("test") as purgatory:
        ops = {(thread, number): Op(None) for thread in range(threads) for number in range(count)}
        for key, op in ops.items():
            purgatory.try_complete_else_watch(op, [key])

        def hammer(thread: int) -> None:
            for number in range(count):
                ops[thread, number].ready = True
                purgatory.check_threadsafe((thread, number))
                purgatory.check_threadsafe("unwatched")

        workers = [threading.Thread(target=hammer, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for op in ops.values():
            await op
            passing = Op(None)
            purgatory.try_complete_else_watch(passing, ["passing"])
            passing.cancel()
        for worker in workers:
            worker.join()
        await asyncio.sleep(0)
        check(purgatory, parked=0, completed=count * threads)


@pytest.mark.parametrize("entered", [True, False])
def test_an_interpreter_that_ends_with_operations_parked(entered: bool) -> None:
    """The interpreter exits without a hang or a traceback, although the purgatory is never closed."""
    code = textwrap.dedent(
        f"""
        import asyncio
        from purgatory import Purgatory, DelayedOperation
        class Op(DelayedOperation[None]):
            def try_complete(self): return False
        purgatory = Purgatory("left")
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60.0  # seconds; on a busy machine, any turn may be slow
            if {entered}:
                await purgatory.__aenter__()
            tasks = [asyncio.create_task(purgatory.park(Op(100), [number])) for number in range(10)]
            purgatory.try_complete_else_watch(Op(None), ["b"])
            await asyncio.sleep(0.01)
            purgatory.check_soon("b")
        asyncio.run(main())
        print(len(purgatory))
        """
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")
