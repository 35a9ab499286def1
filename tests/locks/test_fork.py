"""A process that forks while a lock is held: the holder is a task of the parent, so the child's lock is free."""

import os
import subprocess
import sys
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.locks import KeyedLock
from purgatory.testing import VirtualClock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork()")

SCRIPT = """
import asyncio, os, sys
from purgatory import Purgatory
from purgatory.locks import KeyedLock, KeyedSemaphore

room = Purgatory("test")
keyed = KeyedLock(room) if sys.argv[1] == "lock" else KeyedSemaphore(room, 1)

def said(text):
    print(text, flush=True)

async def child():
    async with room:
        said(f"child: locked={keyed.locked('x')} keys={len(keyed)}")
        async with keyed("x", timeout=0):
            said(f"child: acquired, locked={keyed.locked('x')}")
        keyed._check()

async def parent():
    async with room:
        try:
            async with keyed("x"):
                if not (pid := os.fork()):
                    asyncio.run(child())
                    raise ZeroDivisionError  # leaves the block that the parent has entered
                os.waitpid(pid, 0)
                said(f"parent: locked={keyed.locked('x')}")
        except BaseException as error:
            said(f"child: {error!r}, locked={keyed.locked('x')}")
            os._exit(0)
        said(f"parent: locked={keyed.locked('x')}")

asyncio.run(parent())
"""


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_a_lock_that_is_held_at_the_fork_is_free_in_the_child(kind: str) -> None:
    """A task of the child acquires it at once, the parent still holds it, and leaving the block is no error."""
    script = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SCRIPT, kind]
    done = subprocess.run(script, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout + done.stderr).splitlines() == [
        "child: locked=False keys=0",
        "child: acquired, locked=True",
        "child: ZeroDivisionError(), locked=False",
        "parent: locked=True",
        "parent: locked=False",
    ]


async def test_a_lock_is_free_in_the_child_even_if_its_timer_belongs_to_no_loop(clock: VirtualClock) -> None:
    """Taking a free lock binds nothing, so the loop of the holder is unknown; this process stands for the child."""
    room = Purgatory[Any]("test", clock=clock)
    locks = KeyedLock(room)
    async with locks("x"):
        assert room.timer._loop is None
        room.timer._binding.after_fork()
        assert not locks.locked("x")
        async with locks("x", timeout=0):
            assert locks.locked("x")
    assert not locks.locked("x")
    locks._check()
    await room.aclose()
