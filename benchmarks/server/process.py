"""The server in a separate process, whose CPU time and memory are read from outside."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["ServerProcess", "cpu_of"]

_ROOT = Path(__file__).parent.parent.parent
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU time that the process has used, in user code and in the kernel."""
    return time.clock_gettime((~pid << 3) | 2)  # its clock, as clock_getcpuclockid(3) returns it on Linux


class ServerProcess:
    """A server that runs one of the forms, on a free loopback port; ``with`` starts it and ensures that it ends.

    ``core``: the processor core on which it runs.  ``module``: the module that serves, with its first arguments.
    """

    def __init__(self, form: str, core: int, module: Sequence[str] = ("benchmarks.server.app",)) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            self.port: int = listener.getsockname()[1]
            command = [sys.executable, "-m", *module, form, str(listener.fileno())]
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {core})  # a child inherits the affinity
            try:
                self._process = subprocess.Popen(
                    command, cwd=_ROOT, pass_fds=[listener.fileno()], stdin=subprocess.PIPE
                )
            finally:
                os.sched_setaffinity(0, before)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End the process at once, without answering the waiting requests.  Idempotent."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def cpu(self) -> float:
        """Return the seconds of CPU time that the process has used, in user code and in the kernel."""
        return cpu_of(self.pid)

    def sleeps(self) -> int:
        """Return how often the process has gone to sleep."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    def resident(self) -> int:
        """Return the resident memory of the process in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
