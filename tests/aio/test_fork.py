"""A process that forks, as a preloading server does: what the child inherits."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from functools import cache
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, SystemTimer
from purgatory.aio import loop_binding
from purgatory.core.timer.task import FAR_MS
from purgatory.testing import VirtualClock
from tests.helpers import Op

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork()")

# The scripts below follow this one, which runs them once for each list of arguments, in children that have the imports.
# What they fork are children of these children.
IN_CHILDREN = """
import asyncio, json, os, sys
import purgatory, uvloop

for arguments in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        sys.argv[1:] = arguments
        break
    print("== ended:", os.waitpid(pid, 0)[1], flush=True)
else:
    sys.exit()
"""

SCRIPT = """
import asyncio, gc, os, sys
import uvloop
from purgatory import DelayedOperation, Purgatory, SystemTimer

class Op(DelayedOperation):
    def try_complete(self):
        return False
    def on_complete(self):
        return "expired" if self.expired else "completed"

class Completes(Op):
    ready = False
    def try_complete(self):
        return self.ready

run = {"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]]
room = Purgatory("test", timer=SystemTimer() if sys.argv[2] == "never started" else None)

def said(text):
    print(text, flush=True)

async def entered():
    async with room:
        await parked()

async def parked():
    try:
        room.check_threadsafe("k")
    except RuntimeError as error:
        said(f"child: {error}")
    op = Completes(60)
    task = asyncio.create_task(room.park(op, ["k"]))
    await asyncio.sleep(0)
    if task.done():
        await task
    op.ready = True
    room.check_soon("k")
    said("child: " + await task)
    said("child: " + await room.park(Op(0.01), ["k"]))
    await room.aclose()
    room._check()

def fork():
    pid = os.fork()
    if not pid:
        try:
            run(entered() if sys.argv[3] == "entered" else parked())
        except Exception as error:
            said(f"child: {type(error).__name__}: {error}")
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)

async def uses():
    said("parent: " + await room.park(Op(0.01), ["k"]))

async def waits():
    async with room:
        waiting = []
        if sys.argv[2] == "waiting":
            waiting = [asyncio.create_task(room.park(Op(0.01), ["k"]))]
        room.check_soon("k")
        room.check_threadsafe("k")
        await asyncio.sleep(0)
        fork()
        for task in waiting:
            said("parent: " + await task)
        await uses()

async def checks():
    room.check_soon("k")  # the timer belongs to this loop now, and has no reaper
    fork()
    await uses()
    await room.timer.aclose()

if sys.argv[2] == "between loops":
    run(uses())
    fork()
    run(uses())
else:
    run(checks() if sys.argv[2] == "never started" else waits())
"""
VARIANTS = (
    ("empty", "entered"),
    ("empty", "not entered"),
    ("waiting", "entered"),
    ("waiting", "not entered"),
    ("between loops", "entered"),
    ("never started", "entered"),
)


LOOPS = ("asyncio", "uvloop")


@cache
def printed(script: str, variants: tuple[tuple[str, ...], ...]) -> dict[tuple[str, ...], list[str]]:
    """Run the script with each loop and variant; return the lines that each of these children prints, with errors."""
    every = [(loop, *variant) for loop in LOOPS for variant in variants]
    options = ["-W", "always", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *options, "-c", IN_CHILDREN + script, json.dumps(every)]
    pipe = subprocess.PIPE
    done = subprocess.run(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=50, check=True)
    texts = done.stdout.split("== ended: 0\n")
    assert texts.pop() == ""
    return {arguments: text.splitlines() for arguments, text in zip(every, texts, strict=True)}


def lines(*arguments: str) -> list[str]:
    """Return what the script prints with these arguments."""
    return printed(SCRIPT, VARIANTS)[arguments]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_purgatory_that_is_empty_at_the_fork_is_usable_in_the_child(loop: str) -> None:
    """In the child it belongs to no loop, like a new one, and then to the child's loop; the parent still uses it."""
    assert lines(loop, "empty", "entered") == ["child: completed", "child: expired", "parent: expired"]
    assert lines(loop, "empty", "not entered") == [
        "child: the purgatory belongs to no event loop yet: enter it with 'async with' first",
        "child: completed",
        "child: expired",
        "parent: expired",
    ]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ["entered", "not entered"])
def test_operations_that_are_parked_at_the_fork_are_answered_in_the_parent_only(loop: str, how: str) -> None:
    """The child may not use their purgatory, and the error names the fork."""
    said = lines(loop, "waiting", how)
    if how == "not entered":
        assert said.pop(0) == "child: the purgatory belongs to no event loop yet: enter it with 'async with' first"
    refused = (
        "child: RuntimeError: the timer had tasks when this process was forked, and they belong to the parent process:"
        " create the purgatory after the fork"
    )
    assert said == [refused, "parent: expired", "parent: expired"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_purgatory_whose_loop_does_not_run_at_the_fork_is_usable_in_both(loop: str) -> None:
    """As a server does that prepares its application in one loop, forks, and serves it in another."""
    assert lines(loop, "between loops", "entered") == [
        "parent: expired",
        "child: completed",
        "child: expired",
        "parent: expired",
    ]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_timer_that_was_never_started_is_usable_in_both(loop: str) -> None:
    """It belongs to the parent's loop because of a check that was requested, and to the child's loop in the child."""
    assert lines(loop, "never started", "entered") == ["child: completed", "child: expired", "parent: expired"]


# What a child does first, called in this process


async def test_the_child_drops_the_task_and_the_loop_of_the_parent(clock: VirtualClock) -> None:
    """Nothing refers to them any longer, and the next call binds the timer anew, with a task of its own."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Op]("test", timer=timer) as room:
        timer.start()
        await clock.settle()
        task, number = timer._reaper.task, timer._reaper._wake_up_number
        assert task is not None
        for _ in range(2):  # the second time, for a child of the child, there is no loop
            loop_binding._after_fork()
            assert task._log_destroy_pending is False  # type: ignore[attr-defined]  # asyncio must not warn of it
            assert (timer._reaper.task, timer._reaper._alarm, timer._started_in, timer._loop) == (
                None,
                None,
                None,
                None,
            )
            assert timer._next_wake_ms == FAR_MS
            assert room._loop is None
            assert timer._reaper._wake_up_number != number
        task.cancel()  # in a child, it would not run
        with contextlib.suppress(asyncio.CancelledError):
            await task
        op = Op(5)
        waiting = asyncio.create_task(room.park(op, ["a"]))
        await clock.advance(5)
        await waiting
        assert op.outcome is Outcome.EXPIRED
        await timer.aclose()


@pytest.mark.parametrize("what", ["an operation", "a deadline"])
async def test_the_child_refuses_a_timer_with_work_of_the_parent(clock: VirtualClock, what: str) -> None:
    """One operation without a deadline, or one deadline without an operation, is enough."""
    timer = SystemTimer(clock=clock)
    room = Purgatory[Any]("test", timer=timer)
    room.check_soon("a")
    if what == "an operation":
        room.try_complete_else_watch(Op(None), ["a"])
    else:
        deadline = timer.fail_after(5)
    assert timer._loop is asyncio.get_running_loop()
    loop_binding._after_fork()
    for call in (lambda: room.check_and_complete("a"), lambda: timer.fail_after(1)):
        with pytest.raises(RuntimeError, match=r"^the timer had tasks when this process was forked, and they belong"):
            call()
    timer._binding._inherited = False  # this process is no child
    timer._binding._guard_thread()
    if what == "a deadline":
        deadline.cancel()
    await room.aclose()
    await timer.aclose()


def test_the_child_keeps_what_belongs_to_no_running_loop(clock: VirtualClock) -> None:
    """If nothing waits, the child may even run its copy of a stopped loop."""
    timer = SystemTimer(clock=clock)
    room = Purgatory[Op]("test", timer=timer)

    async def enter() -> asyncio.AbstractEventLoop:
        await room.__aenter__()
        return asyncio.get_running_loop()

    with asyncio.Runner() as runner:
        loop = runner.run(enter())
        timer._binding.after_fork()
        assert timer._loop is loop
        assert timer.running
        room.check_threadsafe("a")
        runner.run(room.aclose())
        runner.run(timer.aclose())


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
def test_the_child_leaves_the_waits_of_a_loop_that_does_not_run(clock: VirtualClock, closed: bool) -> None:
    """The reaper of a stopped loop ends if the child runs its copy; a dropped subscription wakes no loop."""
    timer = SystemTimer(clock=clock)
    room = Purgatory[Any]("test", timer=timer)

    async def subscribe() -> Any:
        timer.start()
        await asyncio.sleep(0)
        return room.changes(["a"])

    loop = asyncio.new_event_loop()
    changes = loop.run_until_complete(subscribe())
    task = timer._reaper.task
    assert task is not None
    if closed:
        loop.close()
    timer._binding.after_fork()
    assert task._log_destroy_pending is False  # type: ignore[attr-defined]  # asyncio must not warn of it
    assert (timer._reaper.task, timer._loop, room._loop) == (None, None, None)
    del changes
    assert len(room._dropped) == 1
    if not closed:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        with pytest.raises(RuntimeError, match="when this process was forked"):
            loop.run_until_complete(timer.advance_clock())
        loop.close()
    with asyncio.Runner() as runner:
        with pytest.raises(RuntimeError, match="when this process was forked"):
            runner.run(room.aclose())
        timer._binding._inherited = False  # this process is no child
        runner.run(room.aclose())
        runner.run(timer.aclose())


@pytest.mark.parametrize("state", ["without a loop", "stopped", "closed"])
def test_the_child_has_a_lock_that_no_thread_of_the_parent_holds(clock: VirtualClock, state: str) -> None:
    """The timer's loop need not run at the fork: other threads call check_threadsafe() at any time."""
    room = Purgatory[Op]("test", timer=SystemTimer(clock=clock))

    async def request() -> None:
        room._loop = room._binding.bind()
        room._soon._inbox_busy = room._soon._waking = True  # the thread is storing its key
        assert room._soon._lock.acquire()

    def hold_the_lock() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(request())
        loops.append(loop)
        if state == "without a loop":
            room._loop = room._timer._loop = None

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    thread.join()
    if state == "closed":
        loops[0].close()
    assert not room._soon._lock.acquire(blocking=False)
    loop_binding._after_fork()
    assert room._soon._lock.acquire(blocking=False)
    room._soon._lock.release()
    loops[0].close()

    async def wait() -> None:
        async with room:
            operation = Op()
            room.try_complete_else_watch(operation, ["a"])
            operation.ready = True
            room.check_threadsafe("a")
            await clock.settle()
            assert operation.outcome is Outcome.COMPLETED

    asyncio.run(wait())
    room._check()


REQUESTS = """
import asyncio, os, signal, sys, threading
import uvloop
from purgatory import DelayedOperation, Purgatory

class Op(DelayedOperation):
    ready = False
    def try_complete(self):
        return self.ready

class Key:
    def __hash__(self):
        return 1
    def __eq__(self, other):
        comparing.set()
        compared.wait()
        return False

new_loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]
comparing, compared = threading.Event(), threading.Event()
room = Purgatory("test")
loop = new_loop()
loop.run_until_complete(room.__aenter__())
room.check_threadsafe(Key())
thread = threading.Thread(target=lambda: room.check_threadsafe(Key()))
thread.start()
comparing.wait()

async def uses(who):
    async with room:
        op = Op(None)
        room.try_complete_else_watch(op, ["k"])
        op.ready = True
        room.check_threadsafe("k")
        await op
        print(f"{who}: {op.outcome.name}", flush=True)

if not (pid := os.fork()):
    signal.alarm(20)  # ends a child that hangs
    compared.set()
    next_loop = loop if sys.argv[2] == "resumed" else new_loop()
    next_loop.run_until_complete(uses("child"))
    os._exit(0)
print("child ended:", os.waitpid(pid, 0)[1], flush=True)
compared.set()
thread.join()
loop.run_until_complete(uses("parent"))
loop.close()
"""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("state", ["resumed", "stopped"])
def test_a_thread_may_be_making_a_request_at_the_fork(loop: str, state: str) -> None:
    """The child does not wait for that thread, and neither process misses a later request."""
    expected = ["child: COMPLETED", "child ended: 0", "parent: COMPLETED"]
    assert printed(REQUESTS, (("resumed",), ("stopped",)))[loop, state] == expected


WAITS = """
import asyncio, gc, os, sys
import uvloop
from purgatory import DelayedOperation, Purgatory, SystemTimer
from purgatory.locks import KeyedLock
from purgatory.testing import VirtualClock

class Op(DelayedOperation):
    def try_complete(self):
        return self.ready
    def on_complete(self):
        said("answered")

def said(text):
    print(f"{who}: {text}", flush=True)

who, ready = "parent", False
Op.ready = property(lambda _: ready)
new_loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]
state, what = sys.argv[2:]
clock = VirtualClock()
timer = SystemTimer(clock=clock)
room = Purgatory("test", timer=timer)
locks = KeyedLock(room)

def begin():
    if what == "an operation":
        room.try_complete_else_watch(Op(5), ["k"])
    elif what == "a deadline":
        timer.call_later(5, said, "answered")

async def works():
    timer.start()
    if what == "a lock":
        await locks.acquire("k")
    elif what == "a subscription":
        global changes
        changes = room.changes(["k"])
    begin()

async def uses():
    async with room:
        if what == "a lock":
            said(f"locked={locks.locked('k')} and {await locks.acquire('other', timeout=0)}")
        room.check("k")
        await clock.advance(5)
        await timer.aclose()

async def advances():
    await timer.advance_clock()

def run(coroutine, loop):
    try:
        loop.run_until_complete(coroutine)
    except Exception as error:
        said(f"{type(error).__name__}: {str(error).partition(',')[0]}")

loop = new_loop()
if state == "without a loop":
    if what == "a lock":
        loop.run_until_complete(locks.acquire("k"))  # the timer still belongs to no loop
    begin()
else:
    loop.run_until_complete(works())
if state == "closed":
    loop.close()
if not (pid := os.fork()):
    who, ready = "child", True
    if state == "resumed":
        loop.run_until_complete(clock.advance(5))
    next_loop = loop if state == "resumed" else new_loop()
    run(uses(), next_loop)
    if what != "a lock":
        run(advances(), next_loop)
    changes = None
    next_loop.close()
    loop.close()
    del loop
    gc.collect()
    os._exit(0)
os.waitpid(pid, 0)
ready = True
if loop.is_closed():
    loop = new_loop()
run(uses(), loop)
loop.close()
"""
STATES = tuple(
    (state, what)
    for state in ("stopped", "resumed", "closed", "without a loop")
    for what in ("an operation", "a deadline", "a subscription", "a lock")
    if (state, what) != ("without a loop", "a subscription")
)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("state", "what"), STATES)
def test_the_loop_need_not_run_at_the_fork(loop: str, state: str, what: str) -> None:
    """The parent alone answers, whether its loop has stopped or was closed, or there was none; the child is refused."""
    refused = "child: RuntimeError: the timer had tasks when this process was forked"
    expected = {
        "an operation": [refused, refused, "parent: answered"],
        "a deadline": [refused, refused, "parent: answered"],
        "a subscription": [refused, refused],
        "a lock": ["child: locked=False and True", "parent: locked=True and True"],
    }
    assert printed(WAITS, STATES)[loop, state, what] == expected[what]
