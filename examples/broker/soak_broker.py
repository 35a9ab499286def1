"""The broker under the soak: a process of its own, and what it says of itself."""

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

_TABLE_LINES = 8  # of the broker's table: a head, its purgatories, the connections
_PATIENCE = 30.0


class BrokerProcess:
    """The broker under test, and what it says of itself each second.  However the block ends, the process ends."""

    def __init__(self, partitions: int, segment_bytes: int) -> None:
        command = [sys.executable, "-m", "examples.broker", "--port", "0", "--stats", "--partitions", str(partitions)]
        command += ["--segment-bytes", str(segment_bytes), "--initial-rebalance-delay", "0.1"]
        command += ["--min-session-timeout", "0.5", "--frame-timeout", "5"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603
        self.said: list[str] = []
        self.errors: list[str] = []
        self.address = ""
        self._threads = [threading.Thread(target=hear, daemon=True) for hear in (self._listen, self._hear_errors)]

    def __enter__(self) -> Self:
        """Wait until it says where it listens.  RuntimeError with what it said instead."""
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _PATIENCE
        while not (self.said or self.has_ended) and time.monotonic() < deadline:
            time.sleep(0.01)
        ready = re.match(r"broker ready on (\S+:\d+)$", self.said[0]) if self.said else None
        if ready is None:
            self.__exit__(None, None, None)
            raise RuntimeError(
                f"the broker did not start: {''.join(self.said + self.errors).strip() or 'it said nothing'}"
            )
        self.address = ready[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _listen(self) -> None:
        self.said += iter(self.process.stdout or ())

    def _hear_errors(self) -> None:
        self.errors += iter(self.process.stderr or ())

    @property
    def has_ended(self) -> bool:
        """Whether it is no more."""
        return self.process.poll() is not None

    @property
    def table(self) -> list[str]:
        """The lines that it said last."""
        return self.said[-_TABLE_LINES:]

    def resident_mib(self) -> float:
        """Its memory.  Linux."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize() / (1 << 20)

    def log_mib(self) -> float:
        """What its latest table says of the log, which it keeps in memory."""
        found = re.findall(r"log (\d+) bytes", "".join(self.table))
        return int(found[-1]) / (1 << 20) if found else 0.0

    def is_empty(self) -> bool:
        """Whether its latest table says that nobody waits, on no key, on no timer, and nobody is connected."""
        return len(self.table) == _TABLE_LINES and is_at_rest(self.table)

    def stop(self) -> int | None:
        """Tell it to end; its exit code, None if it did not."""
        self.process.terminate()
        try:
            code = self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return None
        for thread in self._threads:
            thread.join(_PATIENCE)
        return code


def is_at_rest(table: Sequence[str]) -> bool:
    """Whether the broker's table tells of nothing parked, watched, connected, buffered or on the timer."""
    *rows, last = table[1:]
    idle = r"connections 0, .* buffered 0 bytes, timer 0,"
    return re.match(idle, last) is not None and all(row.split()[1:4] == ["0", "0", "0"] for row in rows)
