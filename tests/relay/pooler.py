"""A real pgbouncer in front of the Postgres server of the tests."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.relay.engines import PostgresServer, free_port

__all__ = ["PgBouncer"]


class PgBouncer:
    """pgbouncer in transaction mode, with one connection to the server for all its clients."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.port = free_port()

    @staticmethod
    def missing() -> str | None:
        """The reason why there is no pgbouncer, or None."""
        return None if _program() else "no pgbouncer: install it, for example with apt-get install pgbouncer"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
        user = self.server.as_user()
        if user:
            os.chown(self.folder, user["user"], user["group"])
        settings = self.folder / "settings"
        settings.write_text(
            "[databases]\n"
            f"postgres = host=127.0.0.1 port={self.server.port} dbname=postgres user=postgres\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 1\n"
        )
        program = _program()
        assert program is not None
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen([program, str(settings)], stdout=log, stderr=log, cwd=self.folder, **user)
        until = time.monotonic() + 20.0
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
                return self
            except OSError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _program() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
