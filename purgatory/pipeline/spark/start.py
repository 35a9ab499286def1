"""Signals while Spark starts, which takes a few seconds.

If a signal handler raised its exception within PySpark's launcher, PySpark would forget the Java process.  Java would
then stay for ever, with its memory, its temporary files, and the output of the command.  The exception is therefore
held back until Java has ended, which makes the start fail, and is raised then.

Java must not end too early either: for a moment, it would leave a temporary directory.  From the end of the launcher
on, Java removes all of them.
"""

import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from pyspark import SparkContext, java_gateway

__all__ = ["interruptible"]

_LAUNCH_S: Final = 5.0  # seconds from a signal to the end of the launcher
_END_S: Final = 5.0  # seconds for Java to remove its temporary files
_POLL_S: Final = 0.02


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block, which starts Spark, and the processes that the block has started.

    If a signal handler raises an exception, it is raised at the end of the block, after Java has ended.  Spark's own
    handler is not installed: it calls Java while the same thread may be in the middle of another call.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.enter_context(_restored(number))
        stack.enter_context(_replaced(sys.modules[SparkContext.__module__], "signal", _without_handlers))
        if SparkContext._gateway is None and hasattr(java_gateway, "Popen"):
            stack.enter_context(_Start().held_back())
        yield


@contextmanager
def _restored(number: signal.Signals) -> Iterator[None]:
    """Restore the handler of a signal at the end."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(number, before)


@contextmanager
def _replaced(module: types.ModuleType, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace what PySpark's module has imported, if it has."""
    before = getattr(module, name, None)
    if before is None:
        yield
        return
    setattr(module, name, change(before))
    try:
        yield
    finally:
        setattr(module, name, before)


def _without_handlers(module: types.ModuleType) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), "signal": lambda *_: None})


class _Start:
    """``process``: the Java process, or the script that becomes it.  ``raised``: exceptions of signal handlers.

    ``requests``: True ends the process, and False ends the thread that does it.  A handler can interrupt its own thread
    anywhere, so it must not wait for a lock; putting something into this queue needs none.
    """

    def __init__(self) -> None:
        self.process: Popen[bytes] | None = None
        self.raised: list[BaseException] = []
        self.requests: SimpleQueue[bool] = SimpleQueue()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold back the exceptions of signal handlers within the block."""
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, self._holding(handler))
        ending = threading.Thread(target=self._end_on_request, name="purgatory-end-java", daemon=True)
        ending.start()
        try:
            with _replaced(java_gateway, "Popen", self._recording):
                yield
        finally:
            self.requests.put(False)
            ending.join()
            if self.raised:
                raise self.raised[0]

    def _holding(self, handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def receive(number: int, frame: Any) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                self.raised.append(error)
                self.requests.put(True)

        return receive

    def _recording(self, popen: Any) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if self.raised:
                raise self.raised[0]
            self.process = popen(*args, **kwargs)
            if self.raised:  # since then
                self.requests.put(True)
            return self.process

        return start

    def _end_on_request(self) -> None:
        while self.requests.get():
            if self.process is not None:
                _end(self.process)


def _end(process: "Popen[bytes]") -> None:
    """End the process and its descendants.  A script that becomes Java starts a short-lived Java before that."""
    latest = time.monotonic() + _LAUNCH_S
    while SparkContext._gateway is None and process.poll() is None and time.monotonic() < latest:
        time.sleep(_POLL_S)
    descendants = _descendants(process.pid) if process.poll() is None else []
    process.terminate()
    for pid in descendants:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    try:
        process.wait(_END_S)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process, parents first, or none if they are unknown."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found
