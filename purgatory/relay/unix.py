"""Workers on one machine, without a server: stream sockets in a directory.

Each worker listens on a socket in the directory and connects to the other workers' sockets.  A connection carries lines
in one direction: notices in the format of :mod:`.codec`, and ``hello NAME``, in which a worker names its own socket.

How the workers find each other
===============================

1.  A worker binds its socket under a temporary name, listens, and renames the socket.  Therefore, if a socket with a
    final name refuses connections, its process has ended, and the worker that finds the socket removes it.  A process
    that the worker forks closes its copy of the socket at once.
2.  The worker connects to every socket in the directory, including its own, and says hello.
3.  A worker that receives a hello connects to the socket named there and says hello in return.
4.  The new worker is subscribed when every worker that it has found has said hello, or after a quarter of a second, so
    that a stopped or busy worker does not delay the new one.

Why no notice is lost
=====================

1.  A connection delivers everything that is written to it, in order, unless one of the two workers dies.
2.  When a connection begins, its sender may already have published notices.  In that case, the connection begins with
    "check every key".  A worker ignores this notice until the worker is subscribed, because the relay reads every key
    at that moment.
3.  If a worker's socket is full because the worker is stopped or busy, further notices to that worker are dropped.
    When the socket has room again, "check every key" makes up for them.  Nothing blocks, and memory is bounded.
4.  While a worker publishes, it reads the directory at least once a second.  If its own socket is missing, the other
    workers cannot find it, and the connection counts as lost; the relay then begins again with a new socket, in a new
    directory if the old one was removed.  The other workers notice the loss when their connections to the old socket
    end.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import secrets
import socket
import stat
import struct
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from .addresses import described
from .codec import encode_everything
from .transport import Received, Subscribed

__all__ = ["UnixTransport"]

_LOGGER = logging.getLogger("purgatory.relay")
_SOCKET: Final = re.compile(r"[0-9a-f]{10}\.sock")
_NEW: Final = re.compile(r"[0-9a-f]{10}\.new")
_LONGEST_NAME: Final = 15
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103  # sun_path without its NUL
# Errors that mean that the file is unusable: another user's socket, a socket of another type, or a file that is not a
# socket.
_FOREIGN: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EPROTOTYPE, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.ENOTSOCK}
    | {errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG}
)
_HELLO: Final = b"hello "
_EVERYTHING: Final = encode_everything("").encode() + b"\n"
_CHUNK: Final = 32_768  # bytes read from one connection in one turn of the loop
_LONGEST_LINE: Final = 1_048_576
_BACKLOG: Final = 1024
_ACCEPTS: Final = 64  # connections accepted in one turn of the loop
_WELCOME_S: Final = 0.25
_LOOK_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.05  # seconds after the end of a connection
_LAST_LINES_S: Final = 1.0
_NEVER_RENAMED_S: Final = 60.0  # after this, a socket is not going to be renamed, because its process has died


class UnixTransport:
    """Relays between the workers on one machine, through sockets in a directory; no server is needed.

    ``directory``: an absolute or relative path.  All workers of an application use the same directory, on a local file
    system; other applications use other directories.  If the directory is missing, it is created with mode 0700.  An
    existing directory must belong to the user of the process, and no other user may have write permission for it.
    Processes of other users are refused.  Raises ValueError if the path of a socket in the directory would be longer
    than the system allows.

    A relay is connected while its own socket is in the directory and its pings return through that socket.  No other
    worker is needed, so a single worker also counts as connected.

    A transport serves one event loop at a time.  While a loop uses the transport, relays and calls in other loops are
    refused with a RuntimeError.

    This transport works on Linux and macOS.  On Windows, the constructor raises RuntimeError.
    """

    max_payload = 32_768
    """The largest payload in bytes: a payload of this size is read within a millisecond or two."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise RuntimeError(
                "UnixTransport needs Unix sockets, which Python does not have on this system: use PostgresTransport,"
                " RedisTransport, or NatsTransport"
            )
        path: object = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
        if not isinstance(path, str):
            raise TypeError(f"directory must be a str or a path, got {described(directory)}")
        if not path or "\0" in path:
            raise ValueError(f"directory must be a path, got {directory!r}")
        self._directory = os.path.abspath(path)
        longest = _LONGEST_PATH - 1 - _LONGEST_NAME
        length = len(os.fsencode(self._directory))
        if length > longest:
            raise ValueError(
                f"directory must have an absolute path of at most {longest} bytes, because the system limits the path"
                f" of a socket in it to {_LONGEST_PATH}, got {length}: {self._directory!r}"
            )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[str, _Listener] = {}
        self._links: dict[str, _Link] = {}
        self._refused: set[str] = set()  # files that were not created by a worker of this user
        self._has_published = False
        self._looked = -_LOOK_S  # when the directory was last read
        self._look_alarm: asyncio.TimerHandle | None = None
        _transports.add(self)

    def __copy__(self) -> "UnixTransport":
        """Return a new transport for the same directory, without connections."""
        return type(self)(self._directory)

    @property
    def _full_sockets(self) -> list[str]:
        """The names of the sockets in the directory whose workers have not read everything."""
        return [link.name for link in self._links.values() if link.rest]

    # The protocol

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        self._use_running_loop()
        listener = _Listener(self, received)
        try:
            listener.open(self._directory)
            self._listeners[listener.name] = listener
            for link in list(self._links.values()):
                link.write(_HELLO + listener.name.encode() + b"\n")
            self._look()
            listener.awaited.update(self._links.keys() - self._listeners.keys())
            await listener.welcomed()
            if not listener.lost.done():
                listener.is_subscribed = True
                subscribed()
            await listener.lost
        finally:
            self._listeners.pop(listener.name, None)
            listener.close()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`.

        If no ``listen`` is running, the method returns when every worker's socket has accepted the payload.  If the
        directory does not exist, the method raises ConnectionRefusedError, because no worker has started yet; if it is
        not this user's, PermissionError, because its workers refuse the processes of other users.
        """
        self._use_running_loop()
        line = payload.encode() + b"\n"
        if not self._listeners:
            await self._publish_alone(line)
            return
        try:
            if time.monotonic() - self._looked >= _LOOK_S:
                self._look()
        finally:
            self._has_published = True
            for link in list(self._links.values()):
                link.write(line)
        await asyncio.sleep(0)  # a long series of payloads must not stall the loop

    async def _publish_alone(self, line: bytes) -> None:
        """Publish without a socket: others cannot find this process, so this process must find them each time."""
        for link in list(self._links.values()):
            link.read()  # the loop may not have run since the connection ended
        with contextlib.suppress(FileNotFoundError):  # _look raises an error that says what this means
            _require_own(self._directory)
        self._look()
        self._has_published = True
        links = list(self._links.values())
        for link in links:
            link.write(line)
        for link in links:
            await link.is_written()
        if any(link.is_closed for link in links):
            raise ConnectionResetError("a worker has closed its connection while it was sent a notice")

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`.  While another relay listens through the transport, its connections stay open.

        If a worker's socket is full, the worker has a moment to read the remaining data.
        """
        if self._listeners and self._loop is not None and not self._loop.is_closed():
            return
        try:
            left = [link for link in self._links.values() if link.rest]
            if left and asyncio.get_running_loop() is self._loop:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_LINES_S):
                        for link in left:
                            await link.is_written()
        finally:
            self._close_links()

    def __repr__(self) -> str:
        return f"<UnixTransport directory={self._directory!r}>"

    # Inside

    def _use_running_loop(self) -> None:
        """Start over if the last loop has ended; a transport may outlive a loop."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._listeners and self._loop is not None and self._loop.is_running():
            raise RuntimeError("a UnixTransport serves one event loop at a time: create another one for this loop")
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._close_links()
        self._loop = loop

    def _begin_in_child(self) -> None:
        """Close a forked process's copies of the sockets, but do not change the loop, which the parent runs.

        While a copy is open, the system accepts connections to the socket of a parent that has died.
        """
        for listener in self._listeners.values():
            listener.close_copies()
        for link in self._links.values():
            _close_copy(link.connection)
        self._listeners = {}
        self._links = {}
        self._look_alarm = None
        self._loop = None

    def _close_links(self) -> None:
        if self._look_alarm is not None:
            self._look_alarm.cancel()
            self._look_alarm = None
        for link in list(self._links.values()):
            link.close()
        self._links.clear()

    def _greeting(self, name: str) -> bytes:
        """Return the lines with which a connection to the socket begins, or resumes after notices to it were dropped.

        If the socket belongs to this process and is not subscribed yet, it has missed nothing.
        """
        hellos = b"".join(_HELLO + own.encode() + b"\n" for own in self._listeners)
        listener = self._listeners.get(name)
        if not self._has_published or (listener is not None and not listener.is_subscribed):
            return hellos
        return hellos + _EVERYTHING

    def _look(self) -> None:
        """Read the directory: verify that this process's sockets are there, and connect to new sockets."""
        self._looked = time.monotonic()
        if self._look_alarm is not None:
            self._look_alarm.cancel()
            self._look_alarm = None
        try:
            names = set(os.listdir(self._directory))
        except (FileNotFoundError, NotADirectoryError):
            if not self._listeners:
                raise ConnectionRefusedError(f"no worker has created the directory {self._directory!r}") from None
            names = set()
        for name, listener in list(self._listeners.items()):
            if name not in names:
                listener.lose(ConnectionResetError(f"the socket {name} was removed from {self._directory!r}"))
        self._refused &= names
        for name in names - self._links.keys() - self._refused:
            if _SOCKET.fullmatch(name):
                self._connect(name)
            elif _NEW.fullmatch(name):
                self._remove_never_renamed(name)

    def _look_soon(self) -> None:
        """Read the directory a moment after a connection has ended, because the socket may be stale."""
        loop = self._loop
        if self._look_alarm is None and self._listeners and loop is not None:
            self._look_alarm = loop.call_later(_LOOK_AGAIN_S, self._or_lose, self._look)

    def _or_lose(self, step: Callable[..., None], *arguments: Any) -> None:
        """Perform a step in a callback of the loop; if it raises OSError, the connection is lost."""
        try:
            step(*arguments)
        except OSError as error:
            for listener in self._listeners.values():
                listener.lose(error)

    def _connect(self, name: str) -> None:
        """Connect to a socket and send a greeting.  On a Unix socket, connecting succeeds or fails at once.

        macOS also refuses a connection if too many connections wait for a stopped worker.  When the worker continues,
        it finds that its socket has been removed and begins again.
        """
        path = f"{self._directory}/{name}"
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(path)
            if _user_of(connection) != os.geteuid():
                raise PermissionError(errno.EACCES, "it is the socket of another user")
        except ConnectionRefusedError:
            connection.close()
            self._remove_stale(path)
        except FileNotFoundError:
            connection.close()
        except BlockingIOError:  # too many connections wait; the next call to _look tries again
            connection.close()
            if not self._listeners:
                raise ConnectionRefusedError(f"the worker at {path} accepts no further connections") from None
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError) or error.errno not in _FOREIGN:
                raise
            self._refused.add(name)
            _LOGGER.warning("%s is not used: %s", path, error)
        else:
            assert self._loop is not None
            self._links[name] = link = _Link(self, name, connection, self._loop)
            if greeting := self._greeting(name):
                link.write(greeting)

    def _remove_stale(self, path: str) -> None:
        """Remove the socket of a process that has died."""
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)

    def _remove_never_renamed(self, name: str) -> None:
        """Remove the socket of a process that died before it renamed the socket."""
        path = f"{self._directory}/{name}"
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(path).st_mtime > _NEVER_RENAMED_S:
                self._remove_stale(path)

    def _greeted(self, name: str) -> None:
        """Handle a worker's hello."""
        for listener in self._listeners.values():
            listener.stop_waiting_for(name)
        if name not in self._links and name not in self._refused and _SOCKET.fullmatch(name):
            self._or_lose(self._connect, name)

    def _ended(self, link: "_Link") -> None:
        """Handle the end of a connection: the worker has closed its socket or has died."""
        if self._links.get(link.name) is link:
            del self._links[link.name]
            for listener in self._listeners.values():
                listener.stop_waiting_for(link.name)
            self._look_soon()


class _Link:
    """A connection to a worker's socket; only this side writes.

    ``rest``: the part of a line that the socket has not taken yet; while there is any, further lines are dropped.
    ``behind``: whether a line was dropped.
    """

    __slots__ = ("_loop", "_owner", "behind", "connection", "name", "rest", "written")

    def __init__(
        self, owner: UnixTransport, name: str, connection: socket.socket, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.connection = connection
        self.rest = b""
        self.behind = False
        self.written: asyncio.Future[None] | None = None
        self._owner = owner
        self._loop = loop
        loop.add_reader(connection, self.read)

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.connection.fileno() < 0

    def write(self, line: bytes) -> None:
        """Write the line, or drop it if the socket is full."""
        if self.rest:
            self.behind = True
        elif not self.is_closed:
            self._send(line)

    async def is_written(self) -> None:
        """Wait until the socket has taken everything or the connection has ended."""
        while self.rest:
            if self.written is None:
                self.written = self._loop.create_future()
            await asyncio.shield(self.written)

    def close(self) -> None:
        """End the connection."""
        if self.is_closed:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self.connection)
            self._loop.remove_writer(self.connection)
        self.connection.close()
        self.rest = b""
        self._wake()

    def _wake(self) -> None:
        written, self.written = self.written, None
        if written is not None and not written.done() and not self._loop.is_closed():
            written.set_result(None)

    def _send(self, data: bytes) -> None:
        try:
            sent = self.connection.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the worker has died; the reader has not noticed yet
            self._end()
            return
        if sent < len(data) and not self.rest:
            self._loop.add_writer(self.connection, self._has_room)
        self.rest = data[sent:]

    def _has_room(self) -> None:
        self._send(self.rest)
        if self.rest or self.is_closed:
            return
        self._loop.remove_writer(self.connection)
        if self.behind:
            self.behind = False
            self._send(self._owner._greeting(self.name))
        if not self.rest:
            self._wake()

    def read(self) -> None:
        """Detect the end of the connection; the other side writes nothing."""
        try:
            data = self.connection.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end()

    def _end(self) -> None:
        self.close()
        self._owner._ended(self)


class _Listener:
    """The socket on which one relay listens, and the connections to it.

    ``awaited``: the workers that have not said hello yet.
    """

    def __init__(self, owner: UnixTransport, received: Received) -> None:
        self.name = f"{secrets.token_hex(5)}.sock"
        self.is_subscribed = False
        self.awaited: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._welcomed: asyncio.Future[None] = self._loop.create_future()
        self._owner = owner
        self._received = received
        self._path = ""
        self._socket: socket.socket | None = None
        self._connections: dict[socket.socket, bytes] = {}  # each with the beginning of its next line

    def open(self, directory: str) -> None:
        """Listen on a socket in the directory, which is created if it is missing."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        _require_own(directory)
        path = f"{directory}/{self.name}"
        new = path.removesuffix(".sock") + ".new"
        listening = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.setblocking(False)
        listening.bind(new)
        self._path = new
        os.chmod(new, 0o600)
        listening.listen(_BACKLOG)
        os.rename(new, path)
        self._path = path
        self._loop.add_reader(listening, self._accept)

    async def welcomed(self) -> None:
        """Wait until every awaited worker has said hello, but only for a moment."""
        if self.awaited:
            alarm = self._loop.call_later(_WELCOME_S, self._stop_waiting)
            try:
                await self._welcomed
            finally:
                alarm.cancel()

    def stop_waiting_for(self, name: str) -> None:
        """Record that a worker has said hello or that its connection has ended."""
        self.awaited.discard(name)
        if not self.awaited:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if not self._welcomed.done():
            self._welcomed.set_result(None)

    def lose(self, reason: Exception) -> None:
        """End ``listen`` by raising the reason."""
        self._stop_waiting()
        if not self.lost.done():
            self.lost.set_exception(reason)

    def close(self) -> None:
        """Close the socket and its connections, and remove the socket from the directory."""
        if not self.lost.done():
            if not self._loop.is_closed():
                self.lost.cancel()
        elif not self.lost.cancelled():
            self.lost.exception()  # marks the exception as retrieved: it was raised, or the task was cancelled
        for connection in list(self._connections):
            self._drop(connection)
        if self._socket is not None:
            self._stop_reading(self._socket)
            self._socket = None
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def close_copies(self) -> None:
        """Close the sockets in a forked process; the socket in the directory remains the parent's."""
        for connection in self._connections:
            _close_copy(connection)
        if self._socket is not None:
            _close_copy(self._socket)
        self._connections = {}
        self._socket = None
        self._path = ""

    def _stop_reading(self, connection: socket.socket) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(connection)
        connection.close()

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_ACCEPTS):
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # the process has too many open files
                self.lose(error)
                return
            if _user_of(connection) != os.geteuid():
                connection.close()
                _LOGGER.warning("a process of another user was refused at %s", self._path)
                continue
            connection.setblocking(False)
            self._connections[connection] = b""
            self._loop.add_reader(connection, self._read, connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._connections[connection]
        self._stop_reading(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        *lines, rest = (self._connections[connection] + data).split(b"\n")
        for line in lines:
            self._line(line)
        if not data or len(rest) > _LONGEST_LINE:  # the connection has ended, or does not come from a worker
            self._line(rest)  # unless the rest is empty, it cannot be read and therefore means "check every key"
            if connection in self._connections:
                self._drop(connection)
        elif connection in self._connections:
            self._connections[connection] = rest

    def _line(self, line: bytes) -> None:
        if line.startswith(_HELLO):
            self._owner._greeted(line.removeprefix(_HELLO).decode("ascii", "replace"))
        elif line and self.is_subscribed and not self.lost.done():
            self._received(line)


def _require_own(directory: str) -> None:
    """Raise PermissionError unless the directory belongs to this user, and no other user can write to it."""
    status = os.stat(directory)
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"directory must belong to the user of this process ({os.geteuid()}), got one of user {status.st_uid}:"
            f" {directory!r}"
        )
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise PermissionError(f"directory must be writable by its owner only, got mode {mode:04o}: {directory!r}")


def _close_copy(connection: socket.socket) -> None:
    """Close the descriptor of a forked process.

    uvloop keeps a socket open while the loop reads from it, and the loop is the parent's, so it is left alone.
    """
    with contextlib.suppress(OSError):
        os.close(connection.detach())


def _user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end, or -1 if the system does not report it."""
    names: Any = socket  # each system has at most one of the two options
    if hasattr(names, "SO_PEERCRED"):
        _pid, user, _group = struct.unpack("iIi", connection.getsockopt(socket.SOL_SOCKET, names.SO_PEERCRED, 12))
    elif hasattr(names, "LOCAL_PEERCRED"):  # macOS and FreeBSD: struct xucred begins with a version and the user
        try:
            _version, user = struct.unpack_from("II", connection.getsockopt(0, names.LOCAL_PEERCRED, 128))
        except OSError:  # treated as if the system did not report the user
            return -1
    else:
        return -1
    return int(user)


# Forked processes

_transports: Final["weakref.WeakSet[UnixTransport]"] = weakref.WeakSet()


def _begin_in_child() -> None:
    for transport in list(_transports):
        transport._begin_in_child()


if hasattr(os, "register_at_fork"):  # Windows has no fork()
    os.register_at_fork(after_in_child=_begin_in_child)
