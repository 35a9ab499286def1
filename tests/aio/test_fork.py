"""A process that forks while an event loop runs, as a preloading server does: what the child inherits."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork()")

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


def lines(*arguments: str) -> list[str]:
    """Run the script; return what it prints, with the errors."""
    script = [sys.executable, "-W", "always", "-W", "ignore::DeprecationWarning", "-c", SCRIPT, *arguments]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50, check=False)
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_purgatory_that_is_empty_at_the_fork_is_usable_in_the_child(loop: str) -> None:
    """In the child it belongs to no loop, like a new one, and then to the child's loop; the parent still uses it."""
    assert lines(loop, "empty", "entered") == ["child: completed", "child: expired", "parent: expired"]
    assert lines(loop, "empty", "not entered") == [
        "child: the purgatory belongs to no event loop yet: enter it with 'async with' first",
        "child: completed",
        "child: expired",
        "parent: expired",
    ]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
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


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_purgatory_whose_loop_does_not_run_at_the_fork_is_usable_in_both(loop: str) -> None:
    """As a server does that prepares its application in one loop, forks, and serves it in another."""
    assert lines(loop, "between loops", "entered") == [
        "parent: expired",
        "child: completed",
        "child: expired",
        "parent: expired",
    ]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_timer_that_was_never_started_is_usable_in_both(loop: str) -> None:
    """It belongs to the parent's loop because of a check that was requested, and to the child's loop in the child."""
    assert lines(loop, "never started", "entered") == ["child: completed", "child: expired", "parent: expired"]
