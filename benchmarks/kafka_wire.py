"""Handwritten requests to a Kafka broker over a socket: requests that no client would send, at exact times."""

import select
import socket
import struct
import time
from typing import Any, Self

from examples.broker.apis.dispatch import APIS

__all__ = ["Closed", "Wire", "make"]

PINS = {key: api.pin for key, api in APIS.items()}
_TIMEOUT_S = 30.0


class Closed(Exception):
    """The broker has closed the connection."""


def make(message: Any, **fields: Any) -> Any:
    """Return the message; dictionaries in its lists become objects of the classes that the schema names."""
    return message(**_filled(message._struct, fields))


def _filled(schema: Any, fields: dict[str, Any]) -> dict[str, Any]:
    known = schema.fields
    filled = {}
    for name, value in fields.items():
        field = known[name]
        is_list = field.is_struct_array() and value is not None
        filled[name] = [_struct(field.array_of, each) for each in value] if is_list else value
    return filled


def _struct(schema: Any, fields: dict[str, Any]) -> Any:
    return schema.data_class(**_filled(schema, fields))


class Wire:
    """A connection; ``ask`` sends one request and returns the decoded response."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at this end."""
        self._socket.close()

    def send_bytes(self, data: bytes) -> None:
        """Send a frame with these bytes."""
        self._socket.sendall(struct.pack(">i", len(data)) + data)

    def send(self, request: Any, version: int | None = None) -> int:
        """Send a request; return its correlation id."""
        version = PINS[request.API_KEY] if version is None else version
        self._number += 1
        head = struct.pack(">hhih", request.API_KEY, version, self._number, 5) + b"judge"
        self.send_bytes(head + bytes(request.encode(version=version)))
        return self._number

    def receive_bytes(self) -> bytes:
        """Return the next response without its size; raise Closed if there is none."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed
            found += more
        return found

    def answered_within(self, seconds: float) -> bool:
        """Return whether anything arrives within that time, including the end of the connection."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return bool(readable)

    def receive(self, request: Any, version: int | None = None) -> Any:
        """Return the next response, decoded as a response to ``request``."""
        answer = self.receive_bytes()
        module = __import__(type(request).__module__, fromlist=["x"])
        response = getattr(module, request.name.replace("Request", "Response"))
        return response.decode(answer[4:], version=PINS[request.API_KEY] if version is None else version)

    def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request and return its response."""
        self.send(request, version)
        return self.receive(request, version)

    def timed(self, request: Any, version: int | None = None) -> tuple[Any, float]:
        """Send a request; return its response and the seconds until the response arrived."""
        began = time.monotonic()
        return self.ask(request, version), time.monotonic() - began
