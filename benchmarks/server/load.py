"""The clients: plain sockets, each with one long poll in progress, and one more socket that publishes.

There is no HTTP library and no event loop, so that the clients use as little CPU time as possible.
"""

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

__all__ = ["Client", "Load", "Shape", "responses"]

_PATIENCE_S = 120.0
_CONNECTING = 500  # connections that are opened before the clients wait for the server
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, so that no port stays in TIME_WAIT


@dataclass(frozen=True, slots=True)
class Shape:
    """How many clients wait on how many keys, and how many publishes are made in one pass.

    ``apart``: the clients of a key wait for successive entries, so a publish completes one; otherwise, it completes
    all.
    """

    name: str
    clients: int
    keys: int
    publishes: int
    apart: bool

    @property
    def completed(self) -> int:
        """The number of requests that one publish completes."""
        return 1 if self.apart else self.clients // self.keys


def responses(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Remove the complete responses from the buffer, and yield the status and the body of each.

    Raises ValueError for a response without a length.
    """
    while (end := buffer.find(b"\r\n\r\n")) >= 0:
        head = bytes(buffer[:end]).lower()
        status = int(head[9:12])
        length = 0
        if status != 204:
            _, found, after = head.partition(b"\r\ncontent-length: ")
            if not found:
                raise ValueError(f"a response must have a content-length, got {head!r}")
            length = int(after.partition(b"\r\n")[0])
        if len(buffer) < end + 4 + length:
            return
        body = bytes(buffer[end + 4 : end + 4 + length])
        del buffer[: end + 4 + length]
        yield status, body


class Client:
    """A connection that is kept alive.  ``key`` and ``after``: what its request waits for."""

    __slots__ = ("_buffer", "after", "key", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.settimeout(_PATIENCE_S)
        self._buffer = bytearray()
        self.key = 0
        self.after = 0

    def send(self, method: str, target: str) -> None:
        """Send a request without a body."""
        length = "Content-Length: 0\r\n" if method == "POST" else ""
        self.socket.sendall(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}\r\n".encode())

    def receive(self) -> list[tuple[int, bytes]]:
        """Receive data, waiting for it if necessary; return the responses that are now complete."""
        data = self.socket.recv(65536)
        if not data:
            raise RuntimeError("the server has closed a connection")
        self._buffer += data
        return list(responses(self._buffer))

    def response(self) -> bytes:
        """Wait for the one pending response; return its body.  Raise RuntimeError unless its status is 200."""
        (body,) = self.responses(1)
        return body

    def responses(self, number: int) -> list[bytes]:
        """Wait for the pending responses; return their bodies.  Raise RuntimeError unless each has the status 200."""
        received: list[tuple[int, bytes]] = []
        while len(received) < number:
            received += self.receive()
        for status, _ in received:
            if status != 200:
                raise RuntimeError(f"the server must answer 200, got {status}")
        return [body for _, body in received]


class Load:
    """All clients of one server; ``with`` closes them.  Each publish must complete exactly the expected requests.

    ``prefix``: the start of the keys; it must be different for each load on the same server.
    """

    def __init__(self, port: int, shape: Shape, prefix: str = "") -> None:
        self.shape = shape
        self._prefix = prefix
        self._port = port
        self._publisher = Client(port)
        self._clients: dict[int, Client] = {}  # by file descriptor
        self._epoll = select.epoll()
        self._ends = [0] * shape.keys
        self._waiting: list[deque[Client]] = [deque() for _ in range(shape.keys)]  # by key, in order of arrival
        self._publisher.send("GET", "/entered/0")
        self._sent = int(self._publisher.response())  # waiting requests sent so far, including those of earlier loads
        self._next_key = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._epoll.close()
        for client in (self._publisher, *self._clients.values()):
            with suppress(OSError):
                client.socket.close()

    def connect(self) -> None:
        """Connect all clients and let each of them wait."""
        for number in range(self.shape.clients):
            client = Client(self._port)
            client.key = number % self.shape.keys
            self._clients[client.socket.fileno()] = client
            self._epoll.register(client.socket.fileno(), select.EPOLLIN)
            self._poll(client)
            if number % _CONNECTING == _CONNECTING - 1:
                self._until_entered()
        self._until_entered()

    def warm_up(self, requests: int) -> None:
        """Have some requests answered, so that the server has made its one-time allocations."""
        for _ in range(requests):
            self._publisher.send("GET", "/entered/0")
            self._publisher.response()

    def collector(self) -> float:
        """Return the seconds of CPU time that the server's garbage collector has used."""
        self._publisher.send("GET", "/collector")
        return float(self._publisher.response())

    def publish(self) -> float:
        """Publish to the next key; return the seconds until the last request that it completes is answered."""
        began = time.perf_counter()
        due, expected = self._send_publish()
        self._collect(due)
        took = time.perf_counter() - began
        self._receive_published([expected])
        return took

    def one_pass(self, *, busy: bool = False) -> list[float]:
        """Publish as often as the shape specifies; let the answered clients wait again; return the latencies.

        ``busy``: do not wait for answers before the next publish, so that the server always has a next request; there
        are no latencies then.
        """
        before = [list(clients) for clients in self._waiting]
        latencies = []
        if busy:
            self._publish_all()
        else:
            latencies = [self.publish() for _ in range(self.shape.publishes)]
        for clients, left in zip(before, self._waiting, strict=True):
            for client in clients[: len(clients) - len(left)]:
                self._poll(client)
        self._until_entered()
        return latencies

    def _publish_all(self) -> None:
        due: dict[int, bytes] = {}
        published = []
        for _ in range(self.shape.publishes):
            completed, expected = self._send_publish()
            due |= completed
            published.append(expected)
        self._collect(due)
        self._receive_published(published)

    def _send_publish(self) -> tuple[dict[int, bytes], bytes]:
        """Publish to the next key; return the answers of the completed requests, by descriptor, and the publisher's."""
        key = self._next_key
        self._next_key = (key + 1) % self.shape.keys
        waiting = self._waiting[key]
        self._ends[key] += 1
        end = self._ends[key]
        expected = b"%d" % end
        due: dict[int, bytes] = {}
        while waiting and waiting[0].after < end:
            due[waiting.popleft().socket.fileno()] = expected
        if len(due) != self.shape.completed:
            raise RuntimeError(f"a publish must complete {self.shape.completed}, got {len(due)}")
        self._publisher.send("POST", f"/topics/{self._prefix}{key}")
        return due, expected

    def _receive_published(self, expected: list[bytes]) -> None:
        received = self._publisher.responses(len(expected))
        if received != expected:
            raise RuntimeError(f"the topics must end at {expected}, got {received}")

    def _poll(self, client: Client) -> None:
        waiting = self._waiting[client.key]
        client.after = self._ends[client.key]
        if self.shape.apart and waiting:
            client.after = waiting[-1].after + 1
        waiting.append(client)
        client.send("GET", f"/topics/{self._prefix}{client.key}?after={client.after}")
        self._sent += 1

    def _until_entered(self) -> None:
        self._publisher.send("GET", f"/entered/{self._sent}")
        self._publisher.response()

    def _collect(self, due: dict[int, bytes]) -> None:
        """Receive the responses to these clients only, each with this body."""
        while due:
            ready = self._epoll.poll(_PATIENCE_S)
            if not ready:
                raise RuntimeError(f"{len(due)} requests are not answered within {_PATIENCE_S:g} s")
            for descriptor, _ in ready:
                for status, body in self._clients[descriptor].receive():
                    expected = due.pop(descriptor, None)
                    if expected is None:
                        raise RuntimeError(f"an answer must be due, got {status} {body!r}")
                    if (status, body) != (200, expected):
                        raise RuntimeError(f"an answer must be {expected!r}, got {status} {body!r}")
