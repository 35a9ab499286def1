"""Event loops that run ready callbacks in an order that a seed determines.

On asyncio, the whole queue of a turn is shuffled.  uvloop's queue is not accessible, so the callbacks of ``call_soon``
are collected, shuffled and run together.  These are the steps of tasks and the callbacks of futures, which include
everything that this library schedules.  Events of uvloop itself (sockets, timers, other threads) keep their order.
"""

import asyncio
import importlib.util
import random
from collections.abc import Callable
from typing import Any

__all__ = ["LOOPS"]


class _ShufflingLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._source = random.Random(seed)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            shuffled = list(ready)
            self._source.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        super()._run_once()  # type: ignore[misc]


LOOPS: dict[str, Callable[[int], asyncio.AbstractEventLoop]] = {"asyncio": _ShufflingLoop}

if importlib.util.find_spec("uvloop") is not None:
    import uvloop

    class _ShufflingUvloop(uvloop.Loop):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self._source = random.Random(seed)
            self._held: list[asyncio.Handle] = []

        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
            handle = asyncio.Handle(callback, args, self, context)
            self._held.append(handle)
            if len(self._held) == 1:
                super().call_soon(self._run_held)
            return handle

        def _run_held(self) -> None:
            held, self._held = self._held, []
            self._source.shuffle(held)
            for handle in held:
                if not handle.cancelled():
                    handle._run()

    LOOPS["uvloop"] = _ShufflingUvloop
