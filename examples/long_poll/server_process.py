"""The server as a child process."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .server import READY, STOPPED

__all__ = ["ExitReport", "ServerProcess"]

_HERE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ExitReport:
    """The exit code, the final statistics, and the seconds that the shutdown took."""

    exit_code: int
    statistics: dict[str, Any]
    seconds: float


class ServerProcess:
    """``python -m examples.long_poll`` with the given arguments; ``async with`` starts and ends the process.

    ``url``: the address of the server.  ``output``: the lines of its stdout and stderr.
    """

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.url = ""
        self.loop = ""
        self.output: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        if self._reading is not None:
            await self._reading

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    async def start(self, *, timeout: float = 30.0) -> None:
        """Start the server and wait until it is ready.  Raise RuntimeError, with the server's output, if it exits."""
        command = [sys.executable, "-m", "examples.long_poll", *self.arguments]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=_HERE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._process = process
        self.output = []
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(process, ready))
        line = await asyncio.wait_for(ready, timeout)
        if not line:
            code = await process.wait()
            raise RuntimeError(f"the server exited with code {code} before it was ready: {''.join(self.output)}")
        _, self.url, _, self.loop = line.split()

    async def _read(self, process: asyncio.subprocess.Process, ready: "asyncio.Future[str]") -> None:
        if process.stdout is None:
            raise RuntimeError("the server was started without a pipe")
        async for raw in process.stdout:
            line = raw.decode(errors="replace")
            self.output.append(line)
            if line.startswith(READY) and not ready.done():
                ready.set_result(line)
        if not ready.done():
            ready.set_result("")

    async def stop(self, *, timeout: float = 60.0) -> ExitReport:
        """Send SIGTERM and wait for the exit.  Raise TimeoutError if it takes too long."""
        process = self._running()
        began = time.perf_counter()
        process.terminate()
        code = await asyncio.wait_for(process.wait(), timeout)
        seconds = time.perf_counter() - began
        if self._reading is not None:
            await self._reading
        statistics: dict[str, Any] = {}
        for line in self.output:
            if line.startswith(STOPPED):
                statistics = json.loads(line.removeprefix(STOPPED))
        return ExitReport(code, statistics, seconds)

    def rss(self) -> int:
        """Return the resident memory in bytes."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except FileNotFoundError:
            command = ["ps", "-o", "rss=", "-p", str(self.pid)]
            return int(subprocess.check_output(command)) * 1024  # noqa: S603 - fixed arguments and a number
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the server has not been started")
        return self._process
