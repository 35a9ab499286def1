"""A worker in a process of its own, for the tests of the transport through sockets.

It is started with ``unix_worker DIRECTORY STATE LOOP``.  The shared state is a directory: a key has changed if a file
of its name is there.  The loop is ``asyncio`` or ``uvloop``.  The worker obeys its standard input:

===============  ==================================================================
``wait KEY``     wait for the key; print ``answered KEY``, or ``expired KEY`` after 30 s
``change KEY``   change the key and check it
``fork``         fork a process that lives on; print ``forked PID``
``statistics``   print a line of JSON
===============  ==================================================================
"""

import asyncio
import dataclasses
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from purgatory import Purgatory
from purgatory.relay import Relay, UnixTransport


async def work(directory: str, state: Path) -> None:
    """Obey until the end of the input."""
    loop = asyncio.get_running_loop()
    room = Purgatory[Any]("worker")
    relay = Relay(room, UnixTransport(directory), heartbeat=2.0, resync_every=3600.0)

    async def wait(key: str) -> None:
        answered = await relay.wait_until((state / key).exists, keys=[key], timeout=30.0)
        print("answered" if answered else "expired", key, flush=True)

    async with room, relay:
        print("ready", flush=True)
        tasks = set()
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            match words:
                case ["wait", key]:
                    tasks.add(asyncio.create_task(wait(key)))
                    await asyncio.sleep(0)
                    print("waits", key, flush=True)
                case ["change", key]:
                    (state / key).touch()
                    relay.check(key)
                case ["fork"]:
                    begun, begin = os.pipe()
                    if (child := os.fork()) == 0:
                        os.closerange(0, 2)  # the parent has ended when its pipes are closed
                        os.write(begin, b"1")
                        signal.pause()
                    os.read(begun, 1)  # the child has closed its copies of the sockets
                    print("forked", child, flush=True)
                case ["statistics"]:
                    print(json.dumps(dataclasses.asdict(relay.statistics())), flush=True)
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    factory = (
        asyncio.SelectorEventLoop if sys.argv[3] == "asyncio" else importlib.import_module("uvloop").new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work(sys.argv[1], Path(sys.argv[2])))
