"""The broker as a child process of the soak test."""

import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["BrokerProcess", "is_at_rest"]

_TABLE_LINES = 8  # lines in the statistics: a header, one per purgatory, and one for the connections
_PATIENCE = 30.0


class BrokerProcess:
    """The broker process and the statistics that it prints every second.  Leaving the context ends the process."""

    def __init__(self, partitions: int, segment_bytes: int) -> None:
        command = [sys.executable, "-m", "examples.broker", "--port", "0", "--stats", "--partitions", str(partitions)]
        command += ["--segment-bytes", str(segment_bytes), "--initial-rebalance-delay", "0.1"]
        command += ["--min-session-timeout", "0.5", "--frame-timeout", "5"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603
        self.output: list[str] = []
        self.errors: list[str] = []
        self.address = ""
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read_output, self._read_errors)]

    def __enter__(self) -> Self:
        """Wait until the broker listens.  Raise RuntimeError, with the broker's output, if it does not."""
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _PATIENCE
        while not (self.output or self.has_ended) and time.monotonic() < deadline:
            time.sleep(0.01)
        ready = re.match(r"broker ready on (\S+:\d+)$", self.output[0]) if self.output else None
        if ready is None:
            self.__exit__(None, None, None)
            raise RuntimeError(f"the broker did not start: {''.join(self.output + self.errors).strip() or 'no output'}")
        self.address = ready[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _read_output(self) -> None:
        self.output += iter(self.process.stdout or ())

    def _read_errors(self) -> None:
        self.errors += iter(self.process.stderr or ())

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    @property
    def table(self) -> list[str]:
        """The latest statistics that the broker printed."""
        return self.output[-_TABLE_LINES:]

    def resident_mib(self) -> float:
        """Return the resident memory of the process in MiB.  Linux only."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize() / (1 << 20)

    def log_mib(self) -> float:
        """Return the size of the log in MiB from the latest statistics."""
        found = re.findall(r"log (\d+) bytes", "".join(self.table))
        return int(found[-1]) / (1 << 20) if found else 0.0

    def wait_until_at_rest(self) -> bool:
        """Wait until statistics that were collected after this call show an idle broker.  Return False if
        that takes too long.
        """
        enough = len(self.output) + 2 * _TABLE_LINES  # the next statistics may have been collected before this call
        deadline = time.monotonic() + _PATIENCE
        while not (len(self.output) >= enough and is_at_rest(self.table)):
            if time.monotonic() > deadline or self.has_ended:
                return False
            time.sleep(0.1)
        return True

    def stop(self) -> int | None:
        """Send SIGTERM.  Return the exit code, or None if the process did not end."""
        self.process.terminate()
        try:
            code = self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return None
        for thread in self._threads:
            thread.join(_PATIENCE)
        return code


def is_at_rest(table: Sequence[str]) -> bool:
    """Return whether the statistics show nothing parked, watched, connected, buffered, or on the timer."""
    *rows, last = table[1:]
    idle = r"connections 0, .* buffered 0 bytes, timer 0,"
    return re.match(idle, last) is not None and all(row.split()[1:4] == ["0", "0", "0"] for row in rows)
